// f32 panels with AVX-512: 8 rows by 3 vectors, 24 sums in registers.
#include "kernels/cpu/matmul/matmul_pack_avx512.h"
#include "kernels/cpu/matmul/matmul_tile.h"

namespace sinter::kernels::cpu {
namespace {

struct Floats {
  using Vector = __m512;
  using Sum = __m512;
  static constexpr int kLanes = 16, kVectors = 3, kRows = 8, kElementsPerUnit = 1;
  static Vector load(const uint32_t* p) { return _mm512_loadu_ps(p); }
  static Vector broadcast(const uint32_t* p) { return _mm512_set1_ps(*reinterpret_cast<const float*>(p)); }
  static Sum zero() { return _mm512_setzero_ps(); }
  static Sum load_sum(const float* p) { return _mm512_loadu_ps(p); }
  static void store_sum(float* p, Sum sum) { _mm512_storeu_ps(p, sum); }
  static Sum multiply_add(Vector a, Vector b, Sum sum) { return _mm512_fmadd_ps(a, b, sum); }
  static void keep(Sum& sum) { asm volatile("" : "+v"(sum)); }
};

struct PanelOfBf16 {
  using Element = uint16_t;
  static __m512 load(const uint16_t* p) { return _mm512_castsi512_ps(FloatsFromBf16::along_k(p, 16)); }
};
struct PanelOfF16 {
  using Element = uint16_t;
  static __m512 load(const uint16_t* p) { return _mm512_castsi512_ps(FloatsFromF16::along_k(p, 16)); }
};

}  // namespace

const MatmulKernel* avx512_f32_kernel() {
  static constexpr MatmulKernel kKernel{
      .name = "avx512",
      .rows = Floats::kRows,
      .columns = Floats::kVectors * Floats::kLanes,
      .step_k = 1,
      .step_units = 1,
      .slice_units = 0,
      .rows_in_place = 0,
      .pack_a = pack_float_units<Floats::kRows>,
      .pack_b = pack_float_units<Floats::kVectors * Floats::kLanes>,
      .multiply = multiply_tile<Floats>,
      .multiply_narrow = multiply_narrow_tile<Floats, PanelOfBf16, PanelOfF16>,
      .narrow_rows = 4 * Floats::kRows,
      .finish = finish_tile<ToBf16>,
      .transpose = nullptr,
      .sum_squares = sum_squares_of_block,
      .can_stream = true,
      .enter = do_nothing,
      .leave = fence_streams,
      .spin = spin_registers<Floats>,
  };
  return &kKernel;
}

}  // namespace sinter::kernels::cpu

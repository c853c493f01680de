// Pairs of bf16 with AVX512-BF16: each instruction adds two products to a sum, the tile is that of the f32 kernel.
#include "kernels/cpu/matmul/matmul_round_bf16.h"
#include "kernels/cpu/matmul/matmul_tile.h"

namespace sinter::kernels::cpu {
namespace {

struct Pairs {
  using Vector = __m512i;
  using Sum = __m512;
  static constexpr int kLanes = 16, kVectors = 3, kRows = 8, kElementsPerUnit = 2;
  static Vector load(const uint32_t* p) { return _mm512_loadu_si512(p); }
  static Vector broadcast(const uint32_t* p) { return _mm512_set1_epi32(static_cast<int>(*p)); }
  static Sum zero() { return _mm512_setzero_ps(); }
  static Sum load_sum(const float* p) { return _mm512_loadu_ps(p); }
  static void store_sum(float* p, Sum sum) { _mm512_storeu_ps(p, sum); }
  static Sum multiply_add(Vector a, Vector b, Sum sum) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
  static void keep(Sum& sum) { asm volatile("" : "+v"(sum)); }
};

}  // namespace

const MatmulKernel* avx512_bf16_kernel() {
  static constexpr MatmulKernel kKernel{
      .name = "avx512_bf16",
      .rows = Pairs::kRows,
      .columns = Pairs::kVectors * Pairs::kLanes,
      .step_k = 2,
      .step_units = 1,
      .slice_units = 0,
      .rows_in_place = 0,
      .pack_a = pack_from<Pairs::kRows, PairsFromBf16>,
      .pack_b = pack_from<Pairs::kVectors * Pairs::kLanes, PairsFromBf16>,
      .multiply = multiply_tile<Pairs>,
      .multiply_narrow = nullptr,
      .narrow_rows = 0,
      .finish = finish_tile<ToBf16Rounded>,
      .transpose = nullptr,
      .sum_squares = sum_squares_of_block,
      .can_stream = true,
      .enter = do_nothing,
      .leave = fence_streams,
      .spin = spin_registers<Pairs>,
  };
  return &kKernel;
}

}  // namespace sinter::kernels::cpu

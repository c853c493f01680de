// f32 panels with the vectors that every CPU of the architecture has (SSE2, NEON), by the compiler's vector types.
#include <cstring>

#include "kernels/cpu/matmul/matmul_tile.h"

namespace sinter::kernels::cpu {
namespace {

struct Floats {
  typedef float Vector __attribute__((vector_size(16)));
  using Sum = Vector;
  static constexpr int kLanes = 4, kVectors = 2, kRows = 4, kElementsPerUnit = 1;
  static Vector load(const uint32_t* p) { return load_sum(reinterpret_cast<const float*>(p)); }
  static Vector broadcast(const uint32_t* p) {
    float x = *reinterpret_cast<const float*>(p);
    return Vector{x, x, x, x};
  }
  static Sum zero() { return Sum{}; }
  static Sum load_sum(const float* p) {
    Sum sum;
    std::memcpy(&sum, p, sizeof sum);
    return sum;
  }
  static void store_sum(float* p, Sum sum) { std::memcpy(p, &sum, sizeof sum); }
  static Sum multiply_add(Vector a, Vector b, Sum sum) { return a * b + sum; }
#if defined(__x86_64__)
  static void keep(Sum& sum) { asm volatile("" : "+x"(sum)); }
#elif defined(__aarch64__)
  static void keep(Sum& sum) { asm volatile("" : "+w"(sum)); }
#else
  static void keep(Sum& sum) { asm volatile("" : "+m"(sum)); }
#endif
};

void finish_tile(const TileOutput& out) {
  for (int64_t r = 0; r < out.rows; ++r) finish_row_plainly(out, r, 0);
}

}  // namespace

const MatmulKernel* portable_f32_kernel() {
  static constexpr MatmulKernel kKernel{
      .name = "portable",
      .rows = Floats::kRows,
      .columns = Floats::kVectors * Floats::kLanes,
      .step_k = 1,
      .step_units = 1,
      .slice_units = 0,
      .rows_in_place = 0,
      .pack_a = pack_floats_plainly<Floats::kRows>,
      .pack_b = pack_floats_plainly<Floats::kVectors * Floats::kLanes>,
      .multiply = multiply_tile<Floats>,
      .multiply_narrow = nullptr,
      .narrow_rows = 0,
      .finish = finish_tile,
      .transpose = nullptr,
      .sum_squares = sum_squares_plainly,
      .can_stream = false,
      .enter = do_nothing,
      .leave = do_nothing,
      .spin = spin_registers<Floats>,
  };
  return &kKernel;
}

}  // namespace sinter::kernels::cpu

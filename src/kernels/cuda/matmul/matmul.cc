// Matrix products through cuBLASLt: bias, GELU and its gradient, and a bias's gradient in the epilogue, accumulation by
// beta = 1, the algorithm chosen by measuring.
//
// cuBLASLt is column-major, our tensors are row-major: c (M, N) row-major is c^T (N, M) column-major, so we ask for
// c^T = op(b)^T op(a)^T with the factors swapped. A row-major (R, C) matrix is a column-major (C, R) one with the same
// leading dimension.
#include <algorithm>

#include "kernels/batch_invariance.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/matmul/fp8_rows.h"
#include "kernels/cuda/matmul/fused_matmul.h"
#include "kernels/cuda/matmul/matmul_plan.h"
#include "kernels/cuda/matmul/small_product.h"
#include "kernels/cuda/sm90/sm90.h"

namespace sinter::kernels::cuda {
namespace {

// Of every matrix of a batch.
int matrix_alignment(const Tensor& t, int64_t batch) {
  const int first = alignment_of(t.raw());
  return batch == 1
             ? first
             : std::min(first, alignment_of(reinterpret_cast<const void*>(t.bytes() / static_cast<size_t>(batch))));
}

void check(const MatmulArgs& args, int64_t m, int64_t n, int64_t k) {
  SINTER_CHECK(args.b.data.num_elements() == args.batch * n * k, "[matmul] b has {} elements; expected {} x {} x {}",
               args.b.data.num_elements(), args.batch, n, k);
  const bool is_fp8 = base::is_fp8(args.a.dtype()) && base::is_fp8(args.b.data.dtype());
  SINTER_CHECK(args.a.dtype() == args.b.data.dtype() || is_fp8, "[matmul] a in {} but b in {}; expected one format",
               base::dtype_name(args.a.dtype()), base::dtype_name(args.b.data.dtype()));
  SINTER_CHECK(
      !is_fp8 || (args.transpose_b && !args.transpose_a && args.a_scale && args.b_scale && m % 16 == 0 && n % 16 == 0 &&
                  k % 16 == 0),
      "[matmul] fp8 ({}, {}, {}): needs both scales, rows of both factors along the summed axis and sizes that "
      "are multiples of 16",
      m, n, k);
  SINTER_CHECK(k > 0, "[matmul] an inner size of 0 for c {}", args.c.shape().to_string());
  SINTER_CHECK(!args.bias || args.bias.dtype() == args.c.dtype(),
               "[matmul] bias in {} but c in {}; expected one format", base::dtype_name(args.bias.dtype()),
               base::dtype_name(args.c.dtype()));
  SINTER_CHECK(m > 0, "[matmul] no rows in c");
}

// The matrix from a column on; its rows stay as far apart.
Tensor columns_from(const Tensor& t, int64_t first) {
  if (!t || first == 0) return t;
  char* at = static_cast<char*>(t.raw()) + static_cast<size_t>(first) * base::dtype_bytes(t.dtype());
  return Tensor::view_of(at, t.shape(), t.dtype(), t.device());
}

// The product with the weight's numbers in a's format, dequantized whole into memory that the backend keeps.
MatmulArgs with_plain_weight(Stream& stream, const MatmulArgs& args) {
  const int64_t E = args.b.experts(), N = args.b.rows(), K = args.b.columns();
  const auto bytes = static_cast<size_t>(E * N * K) * base::dtype_bytes(args.a.dtype());
  void* room = scratch(stream, Scratch::weight, bytes);
  const Tensor all = Tensor::view_of(room, {E * N, K}, args.a.dtype(), args.c.device());
  for (int64_t e = 0; e < E; ++e) dequantize(stream, {.weight = args.b, .expert = e, .y = all.slice(e * N, N)});
  MatmulArgs plain = args;
  plain.b = {.data = args.group_offsets ? all.reshape({E, N, K}) : all};
  return plain;
}

// Products of a forward pass, by a kernel in which no row's result depends on the others.
bool wants_invariant(const MatmulArgs& args) {
  return is_batch_invariant() && !args.transpose_a && args.transpose_b && args.batch == 1 &&
         !base::is_fp8(args.a.dtype());
}

bool has_extras(const FusedMatmulArgs& args) {
  return args.a_sums || args.pre_activation || args.activation_input || args.slope || args.slope_input;
}

// Whether the library may do this call's extras in its epilogue.
bool may_fuse(const FusedMatmulArgs& args) {
  if (options().fuse != Fuse::all || args.slope || args.slope_input) return false;
  const MatmulArgs& p = args.product;
  bool is_16_bit = p.c.dtype() == base::DType::bf16 || p.c.dtype() == base::DType::f16;
  if (args.pre_activation || args.activation_input) {
    return is_16_bit && args.activation == spec::Activation::gelu_tanh && p.c.size(-1) % 8 == 0 && !args.a_sums &&
           !p.accumulate && !(args.pre_activation && args.activation_input) && !(args.activation_input && p.bias);
  }
  // The library's sums come in the format of c and replace what was there: f32 products take them, through scratch.
  return p.transpose_a && !p.bias && p.c.dtype() == base::DType::f32 && p.a.dtype() != base::DType::f32;
}

// Runs a product; false when its extras are better done apart (nothing was enqueued then).
bool run_product(Stream& stream, const FusedMatmulArgs& fused) {
  const MatmulArgs& args = fused.product;
  int64_t m = args.c.rows() / args.batch, n = columns_of(args);
  if (m == 0 || n == 0) return true;
  int64_t k = args.a.num_elements() / (args.batch * m);
  check(args, m, n, k);
  bool extras = has_extras(fused);
  if (extras && !may_fuse(fused)) return false;
  const void *a = args.a.raw(), *b = args.b.data.raw();
  const Tensor c = columns_from(args.c, args.c_first_column), addend = columns_from(args.addend, args.c_first_column);
  ProductKey key{m,
                 n,
                 k,
                 args.batch,
                 args.a.dtype(),
                 args.b.data.dtype(),
                 args.c.dtype(),
                 args.transpose_a,
                 args.transpose_b,
                 args.accumulate || args.addend,
                 static_cast<bool>(args.bias),
                 static_cast<bool>(fused.a_sums),
                 static_cast<bool>(fused.pre_activation),
                 static_cast<bool>(fused.activation_input),
                 args.fast_accumulation,
                 matrix_alignment(args.a, args.batch),
                 matrix_alignment(args.b.data, args.batch),
                 args.addend ? std::min(matrix_alignment(c, args.batch), matrix_alignment(addend, args.batch))
                             : matrix_alignment(c, args.batch),
                 args.c.size(-1)};
  std::lock_guard lock(plans_mutex());
  void* sums = fused.a_sums ? scratch(stream, Scratch::tokens, sizeof(float) * static_cast<size_t>(m)) : nullptr;
  const void* aux = fused.pre_activation ? fused.pre_activation.raw() : fused.activation_input.raw();
  Pointers pointers{
      b,       a,          sums ? sums : args.bias.raw(), aux, args.b_scale.raw(), args.a_scale.raw(), c.raw(),
      c.raw(), args.alpha, args.accumulate ? 1.0f : 0.0f};
  if (args.addend) pointers.c = addend.raw(), pointers.beta = args.beta;
  Plan& plan = plan_for(key, pointers);
  if (plan.runs_apart) return false;
  if (!plan.is_measured && args.c_columns == 0 && may_measure(stream)) {
    FusedMatmulArgs trial = fused;  // its sums go to scratch too
    if (sums) trial.a_sums = Tensor::view_of(sums, {m}, base::DType::f32, args.c.device());
    trial.c_sums = Tensor();  // as much work either way, and they add up
    auto apart = [&](void* d) {
      trial.product.c = Tensor::view_of(d, args.c.shape(), args.c.dtype(), args.c.device());
      matmul_in_parts(*cuda_table(), stream, trial);
    };
    measure(stream, plan, pointers, args.c.bytes(), extras ? apart : std::function<void(void*)>());
    if (plan.runs_apart) return false;
  }
  const cublasStatus_t status = run_first_that_runs(stream, plan, pointers);
  SINTER_CHECK(status == CUBLAS_STATUS_SUCCESS, "[matmul] cuBLASLt failed with status {} for ({}, {}, {}) in {}",
               static_cast<int>(status), m, n, k, base::dtype_name(key.in_a));
  if (sums) {
    Tensor fresh = Tensor::view_of(sums, {m}, base::DType::f32, args.c.device());
    axpby(stream, {.x = fresh, .y = fused.a_sums, .alpha = 1.0f, .beta = fused.accumulate_sums ? 1.0f : 0.0f});
  }
  return true;
}

}  // namespace

void matmul(Stream& stream, const MatmulArgs& args) {
  if (small_matmul(stream, args)) return;
  if (takes_fp8_rows(stream, args) && fp8_rows_matmul(stream, args)) return;
  if (!args.b.is_plain()) return matmul(stream, with_plain_weight(stream, args));
  if (args.group_offsets) {
    SINTER_CHECK(args.c_columns == 0, "[matmul] a product in groups into columns of c: not on CUDA yet");
    return sm90_takes_groups(stream, args) ? sm90_grouped_matmul(stream, args) : grouped_matmul(stream, args);
  }
  if (wants_invariant(args)) return grouped_matmul(stream, args);
  if (args.bias && is_ordinary(args) && own_bias_matmul(stream, args)) return;
  run_product(stream, {.product = args});
}

bool library_fused_matmul(Stream& stream, const FusedMatmulArgs& args) { return run_product(stream, args); }

}  // namespace sinter::kernels::cuda

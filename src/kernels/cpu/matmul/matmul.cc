#include "kernels/cpu/matmul/matmul.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/threads.h"
#include "kernels/cpu/activation.h"
#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/matmul/matmul_product.h"
#include "kernels/cpu/matmul/matmul_weight.h"
#include "kernels/cpu/matmul/quantized.h"
#include "kernels/fused.h"

namespace sinter::kernels::cpu {
namespace {

const char* shifted(const Tensor& t, int64_t elements) {
  return static_cast<const char*>(t.raw()) + elements * static_cast<int64_t>(base::dtype_bytes(t.dtype()));
}

void check_formats(const MatmulArgs& args) {
  using base::DType;
  DType dtype = args.a.dtype();
  SINTER_CHECK(dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16,
               "[matmul] a is {}; expected f32, bf16 or f16", base::dtype_name(dtype));
  SINTER_CHECK(args.b.is_plain() && args.b.data.dtype() == dtype, "[matmul] a is {} and b is {}; expected one format",
               base::dtype_name(dtype), args.b.format_name());
  SINTER_CHECK(args.c.dtype() == dtype || args.c.dtype() == DType::f32, "[matmul] c is {}; expected {} or f32",
               base::dtype_name(args.c.dtype()), base::dtype_name(dtype));
  SINTER_CHECK(!args.bias || args.bias.dtype() == args.c.dtype(), "[matmul] bias is {}; expected c's format, {}",
               base::dtype_name(args.bias.dtype()), base::dtype_name(args.c.dtype()));
  SINTER_CHECK(
      args.c_columns == 0 || (args.c_first_column >= 0 && args.c_first_column + args.c_columns <= args.c.size(-1) &&
                              !args.c_squares && !(args.group_offsets && args.transpose_a)),
      "[matmul] columns {} to {} of c {}: past its end, or with squares or gradients of groups", args.c_first_column,
      args.c_first_column + args.c_columns, args.c.shape().to_string());
  SINTER_CHECK(!args.c_squares || (args.c.dtype() == DType::f32 && !args.group_offsets),
               "[matmul] squares of c asked for, which is {}{}; expected f32 without groups",
               base::dtype_name(args.c.dtype()), args.group_offsets ? " in groups" : "");
}

void check_bias(const MatmulArgs& args, int64_t n) {
  SINTER_CHECK(!args.bias || args.bias.num_elements() == n, "[matmul] bias has shape {}; expected ({})",
               args.bias.shape().to_string(), n);
}

// A product of blocks of the tensors that start at the given elements.
Product make_product(const MatmulArgs& args, int64_t m, int64_t n, int64_t k, int64_t a_at, int64_t b_at,
                     int64_t c_at) {
  Product p;
  p.m = m;
  p.n = n;
  p.k = k;
  p.a = {shifted(args.a, a_at), args.a.dtype(), args.transpose_a ? m : k, !args.transpose_a};
  p.b = {shifted(args.b.data, b_at), args.b.data.dtype(), args.transpose_b ? k : n, args.transpose_b};
  p.c = const_cast<char*>(shifted(args.c, c_at + args.c_first_column));
  p.c_stride = args.group_offsets && args.transpose_a ? n : args.c.size(-1);
  p.c_dtype = args.c.dtype();
  p.bias = args.bias ? args.bias.raw() : nullptr;
  p.alpha = args.alpha;
  p.accumulate = args.accumulate;
  p.is_gradient = args.transpose_a;
  return p;
}

void multiply_plain(const MatmulKernel& kernel, const MatmulArgs& args, const PieceWork* pieces = nullptr) {
  int64_t n = columns_of(args), m = args.c.rows();
  int64_t k = args.transpose_a ? args.a.rows() : args.a.size(-1);
  if (args.c_squares) args.c_squares.data<float>()[0] = 0.0f;
  if (m == 0 || n == 0) return;
  SINTER_CHECK(args.a.num_elements() == m * k && (!args.transpose_a || args.a.size(-1) == m) &&
                   args.b.data.num_elements() == n * k &&
                   (k == 0 || args.b.data.size(-1) == (args.transpose_b ? k : n)),
               "[matmul] a {}{} times b {}{} does not give c {}", args.a.shape().to_string(),
               args.transpose_a ? " transposed" : "", args.b.data.shape().to_string(),
               args.transpose_b ? " transposed" : "", args.c.shape().to_string());
  check_bias(args, n);
  Product product = make_product(args, m, n, k, 0, 0, 0);
  if (args.c_squares) product.c_squares = args.c_squares.data<float>();
  product.pieces = pieces;
  if (args.addend) {
    product.accumulate = true;
    product.addend = shifted(args.addend, args.c_first_column);
  }
  PackedWeight::Form form{&kernel, args.a.dtype(), 1, n, k, args.transpose_b};
  if (const PackedWeight* packed = packed_weight(args.b, form)) product.packed_b = packed->panels(0);
  run_product(kernel, product);
}

// The products of a call grouped by expert.
std::vector<Product> make_group_products(const MatmulKernel& kernel, const MatmulArgs& args) {
  const int32_t* offsets = args.group_offsets.data<int32_t>();
  int64_t experts = args.group_offsets.num_elements() - 1;
  int64_t n = columns_of(args), c_stride = args.c.size(-1), last = offsets[experts];
  bool is_offsets_ascending = offsets[0] >= 0 && std::is_sorted(offsets, offsets + experts + 1);
  std::vector<Product> products;
  check_bias(args, n);
  if (args.transpose_a) {
    int64_t m = args.a.size(-1);
    SINTER_CHECK(!args.transpose_b && args.c.num_elements() == experts * m * n && is_offsets_ascending &&
                     last * m <= args.a.num_elements() && last * n <= args.b.data.num_elements(),
                 "[matmul] {} groups of a {} transposed times b {} do not give c {}", experts,
                 args.a.shape().to_string(), args.b.data.shape().to_string(), args.c.shape().to_string());
    for (int64_t e = 0; e < experts; ++e) {
      int64_t first = offsets[e], rows = offsets[e + 1] - first;
      products.push_back(make_product(args, m, n, rows, first * m, first * n, e * m * n));
    }
    return products;
  }
  int64_t k = args.a.size(-1);
  SINTER_CHECK(args.b.data.num_elements() == experts * n * k && is_offsets_ascending &&
                   last * k <= args.a.num_elements() && last * c_stride <= args.c.num_elements(),
               "[matmul] {} groups of a {} times b {} do not give c {}", experts, args.a.shape().to_string(),
               args.b.data.shape().to_string(), args.c.shape().to_string());
  const PackedWeight* packed = packed_weight(args.b, {&kernel, args.a.dtype(), experts, n, k, args.transpose_b});
  for (int64_t e = 0; e < experts; ++e) {
    int64_t first = offsets[e], rows = offsets[e + 1] - first;
    products.push_back(make_product(args, rows, n, k, first * k, e * n * k, first * c_stride));
    if (packed) products.back().packed_b = packed->panels(e);
  }
  return products;
}

// Products large beside the whole one after the other on all threads, the small ones side by side, a thread each.
void multiply_groups(const MatmulKernel& kernel, const MatmulArgs& args) {
  std::vector<Product> products = make_group_products(kernel, args);
  auto work = [](const Product& p) { return p.m * p.n * std::max<int64_t>(1, p.k); };
  int64_t total = 0;
  for (const Product& p : products) total += work(p);
  int64_t share = total / (4 * base::num_threads());
  auto first_small =
      std::partition(products.begin(), products.end(), [&](const Product& p) { return work(p) > share; });
  std::for_each(products.begin(), first_small, [&](const Product& p) { run_product(kernel, p); });
  base::parallel_for(products.end() - first_small, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) run_product(kernel, first_small[i]);
  });
}

}  // namespace

void matmul(Stream& stream, const MatmulArgs& args) {
  if (!args.b.is_plain()) return quantized_matmul(stream, args);
  if (args.batch > 1) {
    SINTER_CHECK(!args.c_squares, "[matmul] squares of c asked for with a batch of {}; expected one product",
                 args.batch);
    for (int64_t i = 0; i < args.batch; ++i) matmul(stream, matmul_of_batch(args, i));
    return;
  }
  if (args.addend && (args.beta != 1.0f || args.addend.dtype() != args.c.dtype())) {
    SINTER_CHECK(args.c_columns == 0, "[matmul] a scaled addend with columns of c; expected beta 1 and c's format");
    axpby(stream, {.x = args.addend, .y = args.c, .alpha = args.beta});
    MatmulArgs rest = args;
    rest.addend = {};
    rest.accumulate = true;
    return matmul(stream, rest);
  }
  check_formats(args);
  const MatmulKernel& kernel = matmul_kernel(args.a.dtype());
  if (args.group_offsets) {
    multiply_groups(kernel, args);
  } else {
    multiply_plain(kernel, args);
  }
}

// Each piece of the product goes through the activation before it is written.
bool fused_matmul(Stream&, const FusedMatmulArgs& args) {
  const MatmulArgs& p = args.product;
  const bool activates = args.pre_activation || args.activation_input || args.slope || args.slope_input;
  const bool is_plain = !args.gated && !args.a_sums && !p.addend && !p.accumulate && !p.group_offsets && p.batch == 1;
  if (!activates || !is_plain || !is_ordinary(p)) return false;
  MatmulArgs product = p;
  const Tensor& c = args.product.c;
  if (args.pre_activation) product.c = args.pre_activation;
  check_formats(product);
  const ActivationForwardArgs forward{
      .kind = args.activation, .gated = false, .x = args.pre_activation, .y = c, .slope = args.slope};
  const ActivationBackwardArgs backward{
      .kind = args.activation, .gated = false, .dy = c, .x = args.activation_input, .dx = c, .slope = args.slope_input};
  const bool is_backward = args.activation_input || args.slope_input;
  // Sums of columns, one row of them for each panel of rows: added up in their order, whichever thread made them.
  const MatmulKernel& kernel = matmul_kernel(product.a.dtype());
  const int64_t N = c.size(-1), panels = (c.rows() + kernel.rows - 1) / kernel.rows;
  static thread_local AlignedBuffer t_sums;
  float* sums = args.c_sums ? t_sums.reserve_array<float>(panels * N) : nullptr;
  auto ask = [&](const Block& block) {
    if (is_backward) ask_for_block(args.slope_input ? args.slope_input : args.activation_input, block);
  };
  auto take = [&](const Block& block, const void* values, int64_t stride, bool streams) {
    if (!is_backward) return activation_forward_block(forward, block, {values, stride, streams});
    activation_backward_block(backward, block, {values, stride},
                              sums ? sums + block.row / kernel.rows * N + block.column : nullptr);
  };
  const PieceWork pieces{ask, take};
  multiply_plain(kernel, product, &pieces);
  if (sums) add_parts(sums, panels, N, args.c_sums.data<float>());
  return true;
}

}  // namespace sinter::kernels::cpu

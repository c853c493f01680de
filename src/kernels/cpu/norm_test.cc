#include "kernels/test_grid.h"

namespace sinter::kernels {
namespace {

using namespace testing;  // NOLINT

struct NormCase {
  spec::NormKind kind;
  Format format;
  int64_t rows, channels;
  bool has_residual, has_bias;
};

std::vector<NormCase> norm_cases() {
  std::vector<NormCase> cases;
  int turn = 0;
  for (auto kind : {spec::NormKind::rms, spec::NormKind::layer}) {
    for (const Format& format : kFormats) {
      for (int64_t channels : kOddSizes) {
        ++turn;
        cases.push_back({kind, format, 1 + (turn * 13) % 90, channels, turn % 2 == 0, turn % 3 == 0});
      }
    }
  }
  return cases;
}

TEST(CpuNorm, ForwardMatchesReference) {
  for (const NormCase& c : norm_cases()) {
    Shape shape{c.rows, c.channels};
    Tensor x = random_tensor(shape, c.format.dtype, 1), residual = random_tensor(shape, c.format.dtype, 2);
    Tensor weight = random_tensor({c.channels}, DType::f32, 3), bias = random_tensor({c.channels}, DType::f32, 4);
    check_against_reference(
        [&](const KernelTable& table) {
          NormForwardArgs args{.kind = c.kind, .x = x, .weight = weight, .y = empty_tensor(shape, c.format.dtype)};
          if (c.has_residual) args.residual = residual, args.sum = empty_tensor(shape, c.format.dtype);
          if (c.has_bias) args.bias = bias;
          args.mean = zero_tensor({c.rows}, DType::f32);
          args.rstd = empty_tensor({c.rows}, DType::f32);
          table.norm_forward(stream(), args);
          std::vector<Tensor> out{args.y, args.rstd};
          if (c.kind == spec::NormKind::layer) out.push_back(args.mean);
          if (c.has_residual) out.push_back(args.sum);
          return out;
        },
        c.format.tolerance, "norm " + std::to_string(c.rows) + " x " + std::to_string(c.channels));
  }
}

TEST(CpuNorm, BackwardMatchesReference) {
  for (const NormCase& c : norm_cases()) {
    Shape shape{c.rows, c.channels};
    Tensor dy = random_tensor(shape, c.format.dtype, 1), dsum = random_tensor(shape, c.format.dtype, 2);
    Tensor s = random_tensor(shape, c.format.dtype, 5);
    Tensor weight = random_tensor({c.channels}, DType::f32, 3);
    Tensor mean = random_tensor({c.rows}, DType::f32, 6, 0.1f), rstd = random_tensor({c.rows}, DType::f32, 7);
    check_against_reference(
        [&](const KernelTable& table) {
          NormBackwardArgs args{.kind = c.kind, .dy = dy, .s = s, .weight = weight, .mean = mean, .rstd = rstd};
          args.ds = c.has_residual ? clone(dsum) : empty_tensor(shape, c.format.dtype);
          if (c.has_residual) args.dsum = args.ds;  // in place, as the trainer does
          args.dweight = random_tensor({c.channels}, DType::f32, 8);
          if (c.has_bias) args.dbias = random_tensor({c.channels}, DType::f32, 9);
          table.norm_backward(stream(), args);
          std::vector<Tensor> out{args.ds, args.dweight};
          if (c.has_bias) out.push_back(args.dbias);
          return out;
        },
        c.format.tolerance, "norm backward " + std::to_string(c.rows) + " x " + std::to_string(c.channels));
  }
}

TEST(CpuNorm, ARowDoesNotDependOnTheOthers) {
  for (const Format& format : kFormats) {
    Tensor x = random_tensor({37, 130}, format.dtype, 1), weight = random_tensor({130}, DType::f32, 2);
    auto run = [&](const Tensor& rows) {
      NormForwardArgs args{.x = rows,
                           .weight = weight,
                           .y = empty_tensor(rows.shape(), format.dtype),
                           .rstd = empty_tensor({rows.size(0)}, DType::f32)};
      cpu_table()->norm_forward(stream(), args);
      return args.y;
    };
    EXPECT_TRUE(bit_equal(run(x).slice(11, 5), run(x.slice(11, 5))));
  }
}

TEST(CpuHeadNorm, ForwardAndBackwardMatchReference) {
  constexpr int64_t kTokens = 21, kHeads = 6, kKvHeads = 2;
  for (const Format& format : kFormats) {
    for (int64_t dim : {8, 20, 64, 128}) {
      int64_t width = (kHeads + 2 * kKvHeads) * dim;
      Tensor qkv = random_tensor({kTokens, width}, format.dtype, 1),
             dout = random_tensor({kTokens, width}, format.dtype, 2);
      Tensor q_weight = random_tensor({dim}, DType::f32, 3), k_weight = random_tensor({dim}, DType::f32, 4);
      Tensor rstd = empty_tensor({kTokens, kHeads + kKvHeads}, DType::f32);
      auto forward = [&](const KernelTable& table) {
        HeadNormForwardArgs args{.num_heads = kHeads,
                                 .num_kv_heads = kKvHeads,
                                 .head_dim = dim,
                                 .qkv = qkv,
                                 .q_weight = q_weight,
                                 .k_weight = k_weight,
                                 .out = empty_tensor(qkv.shape(), format.dtype),
                                 .rstd = rstd};
        table.head_norm_forward(stream(), args);
        return std::vector<Tensor>{args.out, clone(rstd)};
      };
      check_against_reference(forward, format.tolerance, "head norm of " + std::to_string(dim));
      check_against_reference(
          [&](const KernelTable& table) {
            HeadNormBackwardArgs args{.num_heads = kHeads,
                                      .num_kv_heads = kKvHeads,
                                      .head_dim = dim,
                                      .dout = dout,
                                      .qkv = qkv,
                                      .q_weight = q_weight,
                                      .k_weight = k_weight,
                                      .rstd = rstd,
                                      .dqkv = empty_tensor(qkv.shape(), format.dtype),
                                      .dq_weight = random_tensor({dim}, DType::f32, 5),
                                      .dk_weight = random_tensor({dim}, DType::f32, 6)};
            table.head_norm_backward(stream(), args);
            return std::vector<Tensor>{args.dqkv, args.dq_weight, args.dk_weight};
          },
          format.tolerance, "head norm backward of " + std::to_string(dim));
    }
  }
}

}  // namespace
}  // namespace sinter::kernels

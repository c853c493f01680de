// Every backward kernel of the reference against finite differences of its forward, in f64.
#include <functional>

#include "kernels/cases/tensors.h"

namespace sinter::kernels {
namespace {

using namespace testing;  // NOLINT

constexpr DType kWide = DType::f64;
const KernelTable& table() { return *reference_table(); }

double dot(const Tensor& a, const Tensor& b) {
  double sum = 0;
  for (int64_t i = 0; i < a.num_elements(); ++i) sum += a.data<double>()[i] * b.data<double>()[i];
  return sum;
}

// dx must be the gradient of loss() with respect to every element of x.
void expect_gradient(const Tensor& x, const Tensor& dx, const std::function<double()>& loss, const std::string& what) {
  constexpr double kStep = 1e-5;
  for (int64_t i = 0; i < x.num_elements(); ++i) {
    double& value = x.data<double>()[i];
    double kept = value;
    value = kept + kStep;
    double above = loss();
    value = kept - kStep;
    double below = loss();
    value = kept;
    double expected = (above - below) / (2 * kStep);
    ASSERT_NEAR(dx.data<double>()[i], expected, 2e-7 * std::max(1.0, std::abs(expected))) << what << ", element " << i;
  }
}

TEST(ReferenceNorm, BackwardMatchesFiniteDifference) {
  constexpr int64_t kRows = 3, kChannels = 5;
  for (auto kind : {spec::NormKind::rms, spec::NormKind::layer}) {
    Shape shape{kRows, kChannels};
    Tensor x = random_tensor(shape, kWide, 1), residual = random_tensor(shape, kWide, 2),
           dy = random_tensor(shape, kWide, 3);
    Tensor weight = random_tensor({kChannels}, kWide, 4), bias = random_tensor({kChannels}, kWide, 5);
    Tensor dsum = random_tensor(shape, kWide, 6);
    NormForwardArgs forward{.kind = kind,
                            .x = x,
                            .residual = residual,
                            .weight = weight,
                            .bias = bias,
                            .sum = empty_tensor(shape, kWide),
                            .y = empty_tensor(shape, kWide),
                            .mean = empty_tensor({kRows}, kWide),
                            .rstd = empty_tensor({kRows}, kWide)};
    auto loss = [&] {
      table().norm_forward(stream(), forward);
      return dot(forward.y, dy) + dot(forward.sum, dsum);
    };
    loss();
    NormBackwardArgs backward{.kind = kind,
                              .dy = dy,
                              .dsum = dsum,
                              .s = clone(forward.sum),
                              .weight = weight,
                              .mean = clone(forward.mean),
                              .rstd = clone(forward.rstd),
                              .ds = empty_tensor(shape, kWide),
                              .dweight = zero_tensor({kChannels}, kWide),
                              .dbias = zero_tensor({kChannels}, kWide)};
    table().norm_backward(stream(), backward);
    expect_gradient(x, backward.ds, loss, "dx");
    expect_gradient(residual, backward.ds, loss, "dresidual");
    expect_gradient(weight, backward.dweight, loss, "dweight");
    expect_gradient(bias, backward.dbias, loss, "dbias");
  }
}

TEST(ReferenceHeadNorm, BackwardMatchesFiniteDifference) {
  constexpr int64_t kTokens = 2, kHeads = 3, kKvHeads = 1, kDim = 4, kWidth = (kHeads + 2 * kKvHeads) * kDim;
  Tensor qkv = random_tensor({kTokens, kWidth}, kWide, 1), dout = random_tensor({kTokens, kWidth}, kWide, 2);
  Tensor q_weight = random_tensor({kDim}, kWide, 3), k_weight = random_tensor({kDim}, kWide, 4);
  HeadNormForwardArgs forward{.num_heads = kHeads,
                              .num_kv_heads = kKvHeads,
                              .head_dim = kDim,
                              .qkv = qkv,
                              .q_weight = q_weight,
                              .k_weight = k_weight,
                              .out = empty_tensor(qkv.shape(), kWide),
                              .rstd = empty_tensor({kTokens, kHeads + kKvHeads}, kWide)};
  auto loss = [&] {
    table().head_norm_forward(stream(), forward);
    return dot(forward.out, dout);
  };
  loss();
  HeadNormBackwardArgs backward{.num_heads = kHeads,
                                .num_kv_heads = kKvHeads,
                                .head_dim = kDim,
                                .dout = dout,
                                .qkv = qkv,
                                .q_weight = q_weight,
                                .k_weight = k_weight,
                                .rstd = clone(forward.rstd),
                                .dqkv = empty_tensor(qkv.shape(), kWide),
                                .dq_weight = zero_tensor({kDim}, kWide),
                                .dk_weight = zero_tensor({kDim}, kWide)};
  table().head_norm_backward(stream(), backward);
  expect_gradient(qkv, backward.dqkv, loss, "dqkv");
  expect_gradient(q_weight, backward.dq_weight, loss, "dq_weight");
  expect_gradient(k_weight, backward.dk_weight, loss, "dk_weight");
}

TEST(ReferenceRope, InverseIsTheGradient) {
  Tensor x = random_tensor({3, 12}, kWide, 1), dy = random_tensor({3, 12}, kWide, 2),
         cos_sin = random_tensor({3, 4}, kWide, 3);
  auto loss = [&] {
    Tensor y = clone(x);
    table().rope(stream(), {.num_rotated = 2, .head_dim = 4, .x = y, .cos_sin = cos_sin});
    return dot(y, dy);
  };
  Tensor dx = clone(dy);
  table().rope(stream(), {.num_rotated = 2, .head_dim = 4, .x = dx, .cos_sin = cos_sin, .inverse = true});
  expect_gradient(x, dx, loss, "rope");
}

TEST(ReferenceActivation, BackwardMatchesFiniteDifference) {
  for (auto kind :
       {spec::Activation::silu, spec::Activation::gelu, spec::Activation::gelu_tanh, spec::Activation::relu}) {
    for (bool gated : {false, true}) {
      Shape in{2, gated ? 14 : 7}, out{2, 7};
      Tensor x = random_tensor(in, kWide, 1), dy = random_tensor(out, kWide, 2), dx = empty_tensor(in, kWide);
      auto loss = [&] {
        Tensor y = empty_tensor(out, kWide);
        table().activation_forward(stream(), {.kind = kind, .gated = gated, .x = x, .y = y});
        return dot(y, dy);
      };
      table().activation_backward(stream(), {.kind = kind, .gated = gated, .dy = dy, .x = x, .dx = dx});
      expect_gradient(x, dx, loss, "activation " + std::to_string(static_cast<int>(kind)));
    }
  }
}

TEST(ReferenceCrossEntropy, GradientMatchesFiniteDifference) {
  Tensor logits = random_tensor({3, 6}, kWide, 1), targets = int_tensor({2, -1, 5}), losses = empty_tensor({3}, kWide);
  Tensor scale = random_tensor({1}, kWide, 2), gradient = clone(logits);
  auto loss = [&] {
    table().cross_entropy(stream(), {.logits = logits, .targets = targets, .losses = losses});
    return scale.data<double>()[0] * (losses.data<double>()[0] + losses.data<double>()[1] + losses.data<double>()[2]);
  };
  table().cross_entropy(
      stream(), {.logits = gradient, .targets = targets, .losses = losses, .scale = scale, .write_gradient = true});
  expect_gradient(logits, gradient, loss, "logits");
}

RaggedBatch two_sequences(int64_t first, int64_t second, int64_t padding) {
  RaggedBatch batch;
  batch.num_sequences = 2;
  batch.num_tokens = first + second + padding;
  batch.max_query = batch.max_context = std::max(first, second);
  batch.offsets = int_tensor({0, static_cast<int32_t>(first), static_cast<int32_t>(first + second)});
  batch.contexts = int_tensor({static_cast<int32_t>(first), static_cast<int32_t>(second)});
  return batch;
}

TEST(ReferenceAttention, BackwardMatchesFiniteDifference) {
  RaggedBatch batch = two_sequences(5, 3, 1);
  for (int64_t window : {0, 2}) {
    for (float dropout : {0.0f, 0.3f}) {
      AttentionShape shape{.num_heads = 4,
                           .num_kv_heads = 2,
                           .head_dim = 3,
                           .window = window,
                           .scale = 0.7f,
                           .dropout = dropout,
                           .key = {3, 4}};
      Tensor qkv = random_tensor({9, 24}, kWide, 1), dout = random_tensor({9, 12}, kWide, 2);
      Tensor out = empty_tensor({9, 12}, kWide), lse = empty_tensor({4, 9}, kWide), dqkv = empty_tensor({9, 24}, kWide);
      auto loss = [&] {
        table().attention_forward(stream(), {.shape = shape, .batch = &batch, .qkv = qkv, .out = out, .lse = lse});
        return dot(out, dout);
      };
      loss();
      table().attention_backward(stream(), {.shape = shape,
                                            .batch = &batch,
                                            .qkv = qkv,
                                            .out = clone(out),
                                            .lse = clone(lse),
                                            .dout = dout,
                                            .delta = empty_tensor({4, 9}, kWide),
                                            .dqkv = dqkv});
      expect_gradient(qkv, dqkv, loss, "attention");
    }
  }
}

TEST(ReferenceMoe, RouterBackwardMatchesFiniteDifference) {
  constexpr int64_t kTokens = 4, kExperts = 5, kChosen = 2;
  for (bool norm : {false, true}) {
    Tensor logits = random_tensor({kTokens, kExperts}, kWide, 1),
           dweights = random_tensor({kTokens, kChosen}, kWide, 2);
    Tensor balance_scale = random_tensor({1}, kWide, 3), offsets = int_tensor({0, 3, 3, 4, 6, 8});
    Tensor probs = empty_tensor({kTokens, kExperts}, kWide), weights = empty_tensor({kTokens, kChosen}, kWide);
    Tensor experts = empty_tensor({kTokens, kChosen}, DType::i32), dlogits = empty_tensor({kTokens, kExperts}, kWide);
    auto loss = [&] {
      table().router_forward(stream(), {.experts_per_token = kChosen,
                                        .norm_topk_prob = norm,
                                        .logits = logits,
                                        .probs = probs,
                                        .experts = experts,
                                        .weights = weights});
      Tensor balance = zero_tensor({1}, kWide);
      table().balance_loss(stream(), {.probs = probs, .group_offsets = offsets, .loss = balance});
      return dot(weights, dweights) + dot(balance, balance_scale);
    };
    loss();
    table().router_backward(stream(), {.norm_topk_prob = norm,
                                       .dweights = dweights,
                                       .probs = clone(probs),
                                       .experts = clone(experts),
                                       .weights = clone(weights),
                                       .group_offsets = offsets,
                                       .balance_scale = balance_scale,
                                       .dlogits = dlogits});
    expect_gradient(logits, dlogits, loss, "router");
  }
}

TEST(ReferenceMoe, CombineBackwardMatchesFiniteDifference) {
  Tensor rows = int_tensor({3, 0, 5, 1, 4, 2}), x = random_tensor({6, 4}, kWide, 1),
         weights = random_tensor({3, 2}, kWide, 2);
  Tensor dy = random_tensor({3, 4}, kWide, 3), y = empty_tensor({3, 4}, kWide);
  auto loss = [&] {
    table().expert_combine(stream(), {.x = x, .row_of_slot = rows, .weights = weights, .y = y});
    return dot(y, dy);
  };
  Tensor dx = empty_tensor({6, 4}, kWide), dweights = empty_tensor({3, 2}, kWide);
  table().expert_combine_backward(
      stream(), {.dy = dy, .x = x, .row_of_slot = rows, .weights = weights, .dx = dx, .dweights = dweights});
  expect_gradient(x, dx, loss, "dx");
  expect_gradient(weights, dweights, loss, "dweights");
}

TEST(ReferenceEmbedding, BackwardMatchesFiniteDifference) {
  Tensor tokens = int_tensor({1, 0, 1, 2}), positions = int_tensor({0, 1, 2, 0}), y = empty_tensor({4, 3}, kWide);
  Tensor words = random_tensor({3, 3}, kWide, 1), places = random_tensor({3, 3}, kWide, 2),
         dy = random_tensor({4, 3}, kWide, 3);
  auto loss = [&] {
    table().embedding_forward(
        stream(), {.tokens = tokens, .positions = positions, .table = words, .position_table = places, .y = y});
    return dot(y, dy);
  };
  Tensor dwords = zero_tensor({3, 3}, kWide), dplaces = zero_tensor({3, 3}, kWide);
  table().embedding_backward(
      stream(), {.tokens = tokens, .positions = positions, .dy = dy, .dtable = dwords, .dposition_table = dplaces});
  expect_gradient(words, dwords, loss, "dtable");
  expect_gradient(places, dplaces, loss, "dposition_table");
}

}  // namespace
}  // namespace sinter::kernels

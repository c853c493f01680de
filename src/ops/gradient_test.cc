// Every op's gradients against finite differences of its own forward, by the fast kernels and by the plain loops, and
// under every policy of recomputation.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "base/rng.h"
#include "core/host_batch.h"
#include "ops/activation.h"
#include "ops/attention.h"
#include "ops/embedding.h"
#include "ops/linear.h"
#include "ops/loss.h"
#include "ops/mlp.h"
#include "ops/moe.h"
#include "ops/norm.h"

namespace sinter::ops {
namespace {

constexpr int64_t kRows = 7, kWidth = 12, kHidden = 10, kVocab = 9;

core::Allocator& memory() { return core::runtime({}).allocator(); }

Tensor random_tensor(core::Shape shape, uint64_t seed, float scale = 1.0f) {
  const base::CounterRng rng{seed, 31};
  std::vector<float> values(static_cast<size_t>(shape.num_elements()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = scale * rng.normal(i);
  return core::make_tensor(memory(), shape, values);
}

// Results of one forward: variables, each weighed by fixed random numbers in the objective, and losses of rows.
struct Made {
  std::vector<Variable> outputs;
  Tensor losses, loss_scale;
};

// An op with its operands.
class GradientCheck {
 public:
  using Forward = std::function<Made(const Context&, const std::vector<Variable>&)>;

  Parameter& parameter(const char* name, core::Shape shape, float scale = 1.0f) {
    auto p = std::make_unique<Parameter>();
    p->name = name;
    p->weight.data = p->master = random_tensor(shape, ++seed_, scale);
    p->grad = autograd::Gradient(random_tensor(shape, ++seed_));  // stale: the first write of a step overwrites it
    parameters_.push_back(std::move(p));
    return *parameters_.back();
  }
  void input(core::Shape shape) { inputs_.push_back(random_tensor(shape, ++seed_)); }

  void expect_right(const Forward& forward) {
    for (const kernels::KernelTable* table : {kernels::cpu_table(), kernels::reference_table()}) {
      for (autograd::Recompute mode : {autograd::Recompute::none, autograd::Recompute::selective}) {
        SCOPED_TRACE(std::string(table->name) + (mode == autograd::Recompute::none ? "" : ", selective"));
        check(*table, mode, forward);
      }
    }
  }

 private:
  void check(const kernels::KernelTable& table, autograd::Recompute mode, const Forward& forward) {
    std::vector<Tensor> gradients;
    for (auto& p : parameters_) p->grad.discard();
    const Made made = run(table, &mode, forward, &gradients);
    const double count = static_cast<double>(made.outputs.size());
    ASSERT_TRUE(count > 0 || made.losses);
    for (size_t i = 0; i < inputs_.size(); ++i) compare(table, forward, inputs_[i], gradients[i], "input");
    for (auto& p : parameters_) {
      EXPECT_TRUE(p->grad.accumulates()) << p->name << " got no gradient";
      compare(table, forward, p->master, p->grad.tensor(), p->name.c_str());
    }
  }

  // With `gradients` the backward too: those of the inputs.
  Made run(const kernels::KernelTable& table, const autograd::Recompute* mode, const Forward& forward,
           std::vector<Tensor>* gradients) {
    Tape tape(mode ? *mode : autograd::Recompute::none);
    const Context context{table, core::runtime({}).stream(), memory(), gradients ? &tape : nullptr};
    std::vector<Variable> inputs;
    for (const Tensor& x : inputs_)
      inputs.push_back(context.make_variable(core::make_tensor(memory(), x.shape(), core::to_host<float>(x))));
    Made made = forward(context, inputs);
    if (!gradients) return made;
    for (size_t i = 0; i < made.outputs.size(); ++i) made.outputs[i].slot->grad = weights_of(made.outputs[i].value, i);
    tape.backward();
    for (const Variable& x : inputs) gradients->push_back(x.slot->grad);
    return made;
  }

  static Tensor weights_of(const Tensor& output, size_t index) { return random_tensor(output.shape(), 1000 + index); }

  double objective(const kernels::KernelTable& table, const Forward& forward) {
    const Made made = run(table, nullptr, forward, nullptr);
    double sum = 0;
    for (size_t i = 0; i < made.outputs.size(); ++i) {
      const auto values = core::to_host<float>(made.outputs[i].value);
      const auto weights = core::to_host<float>(weights_of(made.outputs[i].value, i));
      for (size_t j = 0; j < values.size(); ++j)
        sum += static_cast<double>(values[j]) * static_cast<double>(weights[j]);
    }
    if (!made.losses) return sum;
    const auto scale = static_cast<double>(core::to_host<float>(made.loss_scale)[0]);
    for (float loss : core::to_host<float>(made.losses)) sum += scale * static_cast<double>(loss);
    return sum;
  }

  void compare(const kernels::KernelTable& table, const Forward& forward, const Tensor& at, const Tensor& gradient,
               const char* what) {
    ASSERT_TRUE(static_cast<bool>(gradient)) << what;
    const std::vector<float> found = core::to_host<float>(gradient);
    float* values = at.data<float>();
    double largest = 0;
    for (float g : found) largest = std::max(largest, std::abs(static_cast<double>(g)));
    EXPECT_GT(largest, 1e-3) << what << ": a gradient of zeros shows nothing";
    // Elements all over the tensor; each costs two forward passes.
    const size_t stride = std::max<size_t>(1, found.size() / 23);
    for (size_t i = 0; i < found.size(); i += stride) {
      constexpr float kStep = 5e-3f;
      const float before = values[i];
      values[i] = before + kStep;
      const double above = objective(table, forward);
      values[i] = before - kStep;
      const double below = objective(table, forward);
      values[i] = before;
      const double expected = (above - below) / (2 * static_cast<double>(kStep));
      EXPECT_NEAR(static_cast<double>(found[i]), expected, 4e-3 * (1 + largest)) << what << " element " << i;
    }
  }

  uint64_t seed_ = 0;
  std::vector<std::unique_ptr<Parameter>> parameters_;
  std::vector<Tensor> inputs_;
};

spec::ModelSpec small_spec() {
  spec::ModelSpec spec;
  spec.hidden = kWidth, spec.num_heads = 4, spec.num_kv_heads = 2, spec.head_dim = 4;
  spec.activation = spec::Activation::silu;
  spec.moe = {.num_experts = 3, .experts_per_token = 2, .ffn = kHidden, .norm_topk_prob = true};
  return spec;
}

core::RaggedBatch two_sequences() {
  core::HostBatch host;
  const std::vector<int32_t> tokens{3, 1, 4, 1, 5, 8, 2};
  host.add_sequence(std::span(tokens).subspan(0, 3));
  host.add_sequence(std::span(tokens).subspan(3));
  host.set_next_token_targets();
  return core::upload(memory(), host);
}

TEST(Gradients, LinearWithBiasAndResidual) {
  GradientCheck check;
  Parameter &weight = check.parameter("weight", {kHidden, kWidth}), &bias = check.parameter("bias", {kHidden});
  check.input({kRows, kHidden});
  check.input({kRows, kWidth});
  check.expect_right([&](const Context& context, const std::vector<Variable>& in) -> Made {
    return {{linear(context, in[1], weight, &bias, in[0])}, {}, {}};
  });
}

TEST(Gradients, NormsWithResidualReadAgainBehindThem) {
  for (spec::NormKind kind : {spec::NormKind::rms, spec::NormKind::layer}) {
    GradientCheck check;
    Parameter& weight = check.parameter("weight", {kWidth});
    Parameter* bias = kind == spec::NormKind::layer ? &check.parameter("bias", {kWidth}) : nullptr;
    check.input({kRows, kWidth});
    check.input({kRows, kWidth});
    check.expect_right([&](const Context& context, const std::vector<Variable>& in) -> Made {
      const NormResult result = norm(context, in[1], in[0], weight, bias, kind, 1e-5f);
      return {{result.y, result.sum}, {}, {}};
    });
  }
}

TEST(Gradients, NormsOfHeads) {
  GradientCheck check;
  const spec::ModelSpec spec = small_spec();
  Parameter &q = check.parameter("q", {spec.head_dim}), &k = check.parameter("k", {spec.head_dim});
  check.input({kRows, spec.qkv_width()});
  check.expect_right([&](const Context& context, const std::vector<Variable>& in) -> Made {
    return {{head_norm(context, in[0], q, k, spec)}, {}, {}};
  });
}

TEST(Gradients, AttentionOfGroupedHeadsOverTwoSequences) {
  for (int64_t window : {int64_t{0}, int64_t{2}}) {
    GradientCheck check;
    const spec::ModelSpec spec = small_spec();
    const core::RaggedBatch batch = two_sequences();
    check.input({kRows, spec.qkv_width()});
    const kernels::AttentionShape shape{
        .num_heads = 4, .num_kv_heads = 2, .head_dim = 4, .window = window, .scale = 0.5f};
    check.expect_right([&](const Context& context, const std::vector<Variable>& in) -> Made {
      return {{attention(context, in[0], {}, batch, shape, 0)}, {}, {}};
    });
  }
}

TEST(Gradients, PlainMlpWithBiases) {
  GradientCheck check;
  Parameter &up = check.parameter("up", {kHidden, kWidth}, 0.4f), &up_bias = check.parameter("up_bias", {kHidden});
  Parameter &down = check.parameter("down", {kWidth, kHidden}, 0.4f), &down_bias = check.parameter("bias", {kWidth});
  check.input({kRows, kWidth});
  check.expect_right([&](const Context& context, const std::vector<Variable>& in) -> Made {
    return {{plain_mlp(context, in[0], {up, &up_bias, down, &down_bias}, spec::Activation::gelu_tanh)}, {}, {}};
  });
}

TEST(Gradients, GatedMlpWithResidual) {
  GradientCheck check;
  Parameter &up = check.parameter("up", {2 * kHidden, kWidth}, 0.4f),
            &down = check.parameter("down", {kWidth, kHidden});
  check.input({kRows, kWidth});
  check.input({kRows, kWidth});
  check.expect_right([&](const Context& context, const std::vector<Variable>& in) -> Made {
    return {{gated_mlp(context, in[1], {up, nullptr, down, nullptr}, spec::Activation::silu, in[0])}, {}, {}};
  });
}

TEST(Gradients, ActivationsAndSums) {
  GradientCheck check;
  check.input({kRows, kWidth});
  check.input({kRows, 2 * kWidth});
  check.expect_right([&](const Context& context, const std::vector<Variable>& in) -> Made {
    const Variable gated = activation(context, in[1], spec::Activation::silu, true);
    const Variable plain = activation(context, gated, spec::Activation::gelu_tanh, false);
    return {{add(context, plain, in[0])}, {}, {}};
  });
}

// The router's choices must not change within a step of the differences: its rows are drawn far apart.
TEST(Gradients, MixtureOfExpertsWithItsRouter) {
  GradientCheck check;
  const spec::ModelSpec spec = small_spec();
  Parameter& router = check.parameter("router", {3, kWidth});
  Parameter &up = check.parameter("up", {3, 2 * kHidden, kWidth}, 0.4f),
            &down = check.parameter("down", {3, kWidth, kHidden}, 0.4f);
  check.input({kRows, kWidth});
  check.expect_right([&](const Context& context, const std::vector<Variable>& in) -> Made {
    return {{moe(context, in[0], {}, {router, up, down}, spec, {})}, {}, {}};
  });
}

TEST(Gradients, EmbeddingOfTokensAndPositions) {
  GradientCheck check;
  const core::RaggedBatch batch = two_sequences();
  Parameter &tokens = check.parameter("tokens", {kVocab, kWidth}), &places = check.parameter("places", {5, kWidth});
  check.expect_right([&](const Context& context, const std::vector<Variable>&) -> Made {
    return {{embedding(context, batch, tokens, &places)}, {}, {}};
  });
}

TEST(Gradients, HeadWithCrossEntropyAndWeightsOfRows) {
  GradientCheck check;
  const core::RaggedBatch batch = two_sequences();
  Parameter& weight = check.parameter("weight", {kVocab, kWidth}, 0.5f);
  check.input({kRows, kWidth});
  const Tensor scale = core::make_tensor<float>(memory(), {1}, {0.7f});
  const Tensor weights = random_tensor({kRows}, 77);
  check.expect_right([&](const Context& context, const std::vector<Variable>& in) -> Made {
    const Tensor losses(memory(), {kRows}, DType::f32);
    linear_cross_entropy(context, in[0], weight, batch.targets, scale, losses, weights);
    return {{}, losses, scale};
  });
}

// Two readers of one value, inside of a part that is run again.
TEST(Gradients, AreTheSameThroughACheckpoint) {
  GradientCheck check;
  Parameter &weight = check.parameter("weight", {kWidth, kWidth}, 0.4f), &scale = check.parameter("scale", {kWidth});
  check.input({kRows, kWidth});
  check.expect_right([&](const Context& context, const std::vector<Variable>& in) -> Made {
    auto body = [&](const Context& inner, const std::vector<Variable>& x) -> std::vector<Variable> {
      const Variable y = linear(inner, x[0], weight, nullptr);
      const NormResult normed = norm(inner, y, x[0], scale, nullptr, spec::NormKind::rms, 1e-5f);
      return {normed.y, normed.sum};
    };
    return {context.is_recording() ? checkpoint(context, in, body) : body(context, in), {}, {}};
  });
}

TEST(Gradients, AFrozenWeightGetsNoneAndLetsThemPass) {
  GradientCheck check;
  Parameter frozen, frozen_scale;
  frozen.weight.data = frozen.master = random_tensor({kWidth, kWidth}, 90);
  frozen_scale.weight.data = frozen_scale.master = random_tensor({kWidth}, 91);
  Parameter& trained = check.parameter("trained", {kWidth, kWidth});
  check.input({kRows, kWidth});
  check.expect_right([&](const Context& context, const std::vector<Variable>& in) -> Made {
    const Variable y = linear(context, linear(context, in[0], trained, nullptr), frozen, nullptr);
    return {{norm(context, y, {}, frozen_scale, nullptr, spec::NormKind::rms, 1e-5f).y}, {}, {}};
  });
  EXPECT_FALSE(frozen.grad.accumulates());
  EXPECT_FALSE(frozen_scale.grad.accumulates());
}

TEST(Gradients, OfAFurtherMicroBatchAreAddedToTheFirsts) {
  Parameter weight, bias;
  weight.weight.data = weight.master = random_tensor({kWidth, kWidth}, 1);
  weight.grad = autograd::Gradient(random_tensor({kWidth, kWidth}, 2));
  bias.weight.data = bias.master = random_tensor({kWidth}, 3);
  bias.grad = autograd::Gradient(random_tensor({kWidth}, 4));
  auto backward = [&] {
    Tape tape(autograd::Recompute::none);
    const Context context{kernels::kernels_for({}), core::runtime({}).stream(), memory(), &tape};
    const Variable y = linear(context, Tape::make_variable(random_tensor({kRows, kWidth}, 5)), weight, &bias);
    y.slot->grad = random_tensor({kRows, kWidth}, 6);
    tape.backward();
    return std::pair(core::to_host<float>(weight.grad.tensor()), core::to_host<float>(bias.grad.tensor()));
  };
  const auto once = backward();
  const auto twice = backward();
  for (size_t i = 0; i < once.first.size(); ++i) EXPECT_NEAR(twice.first[i], 2 * once.first[i], 1e-4);
  for (size_t i = 0; i < once.second.size(); ++i) EXPECT_NEAR(twice.second[i], 2 * once.second[i], 1e-4);
  weight.grad.discard();
  bias.grad.discard();
  EXPECT_EQ(backward(), once) << "the next step overwrites";
}

}  // namespace
}  // namespace sinter::ops

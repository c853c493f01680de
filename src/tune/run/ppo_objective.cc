#include "tune/run/ppo_objective.h"

#include <cmath>
#include <utility>

#include "core/host_copy.h"
#include "tune/objectives/policy.h"
#include "tune/run/weighted_pass.h"

namespace sinter::tune {

// Of one micro-batch, an element for each token.
struct ValuePolicy::Terms {
  std::span<const float> logprobs;
  std::vector<float> losses, weights, d_values;
};

void ValuePolicy::add(const AnswerPlace& place, std::span<const float> values, Terms& terms, bool learns) {
  const Answer& answer = place.answer;
  const auto first = static_cast<size_t>(place.first);
  for (size_t t = 0; t < answer.tokens.size(); ++t) {
    const double logp = terms.logprobs[first + t], old = answer.logprobs[t];
    const TokenTerms policy =
        clipped_policy_loss(logp, old, answer.advantages[t], options_.clip_low, options_.clip_high);
    const TokenTerms value =
        clipped_value_loss(values[first + t], answer.values[t], answer.returns[t], options_.value_clip);
    double loss = policy.loss + options_.value_weight * value.loss, slope = policy.slope;
    if (options_.kl_in_loss > 0) {
      const double reference = answer.reference[t];
      loss += options_.kl_in_loss * kl_estimate(KlEstimate::k3, logp, reference);
      slope += options_.kl_in_loss * -std::expm1(reference - logp);
    }
    if (place.is_learned) {
      terms.losses[first + t] = static_cast<float>(loss);
      terms.weights[first + t] = static_cast<float>(-slope);
      terms.d_values[first + t] = static_cast<float>(options_.value_weight * value.slope);
    }
    if (!learns) continue;
    sums_.policy += policy.loss;
    sums_.value += value.loss;
    sums_.clipped += policy.is_clipped ? 1 : 0;
    sums_.value_clipped += value.is_clipped ? 1 : 0;
    sums_.ratio_error += std::abs(std::exp(logp - old) - 1);
    if (!answer.reference.empty()) sums_.kl += old - answer.reference[t];
  }
  if (!learns) return;
  sums_.answers += 1;
  sums_.reward += answer.reward;
  sums_.finished += answer.is_finished ? 1 : 0;
  sums_.tokens += static_cast<double>(answer.tokens.size());
}

void ValuePolicy::forward(const train::ObjectivePass& pass) {
  const auto* batch = pass.host ? dynamic_cast<const AnswerBatch*>(pass.host->extra.get()) : nullptr;
  const bool learns = pass.context.is_recording();
  core::Tensor values, slopes;   // (T, 1)
  std::vector<std::byte> bytes;  // of the slopes: on their way to the device until the pass has waited
  const auto read_values = [&](const autograd::Variable& hidden) {
    values = scalar_forward(pass.context, kValueHead, pass.transformer, hidden);
    if (!learns) return;
    slopes = pass.context.make({pass.batch.num_tokens, 1}, hidden.value.dtype());
    record_scalar_backward(pass.context, kValueHead, pass.transformer, hidden, slopes);
  };
  const auto terms_of = [&](std::span<const float> logprobs) {
    const size_t n = logprobs.size();
    Terms terms{logprobs, std::vector<float>(n, 0.0f), std::vector<float>(n, 0.0f), std::vector<float>(n, 0.0f)};
    const std::vector<float> host = read_scalars(kValueHead, pass.transformer, values);
    for (size_t i = 0; batch && i < batch->answers.size(); ++i) add(batch->answers[i], host, terms, learns);
    if (learns) {
      const float scale = core::to_host<float>(pass.places.scale)[0];
      for (float& d : terms.d_values) d *= scale;
      bytes = write_slopes(terms.d_values, slopes);
    }
    return PassTerms{std::move(terms.losses), std::move(terms.weights)};
  };
  weighted_pass(pass, terms_of, read_values);
}

double ValuePolicy::count(const data::MicroBatch& batch) const {
  const auto* answers = dynamic_cast<const AnswerBatch*>(batch.extra.get());
  double tokens = 0;
  for (size_t i = 0; answers && i < answers->answers.size(); ++i) {
    const AnswerPlace& place = answers->answers[i];
    tokens += place.is_learned ? static_cast<double>(place.answer.tokens.size()) : 0;
  }
  return tokens;
}

std::vector<train::Objective::Metric> ValuePolicy::take_metrics() {
  const Sums s = std::exchange(sums_, {});
  return {{"reward", s.reward, s.answers},         {"answer_tokens", s.tokens, s.answers},
          {"finished", s.finished, s.answers},     {"kl", s.kl, s.tokens},
          {"policy_loss", s.policy, s.tokens},     {"value_loss", s.value, s.tokens},
          {"clipped", s.clipped, s.tokens},        {"value_clipped", s.value_clipped, s.tokens},
          {"ratio_error", s.ratio_error, s.tokens}};
}

}  // namespace sinter::tune

#include "tune/run/preference_objective.h"

#include <utility>

#include "tune/run/weighted_pass.h"

namespace sinter::tune {
namespace {

AnswerScore score_of(const AnswerSpan& span, std::span<const float> logprobs) {
  AnswerScore score{0, span.reference, span.count};
  for (int64_t t = span.first; t < span.first + span.count; ++t) score.logp += logprobs[static_cast<size_t>(t)];
  return score;
}

void add_weights(const AnswerSpan& span, double slope, std::vector<float>& weights) {
  for (int64_t t = span.first; t < span.first + span.count; ++t)
    weights[static_cast<size_t>(t)] -= static_cast<float>(slope);
}

PassTerms no_terms(size_t tokens) { return {std::vector<float>(tokens, 0.0f), std::vector<float>(tokens, 0.0f)}; }

}  // namespace

void PairObjective::forward(const train::ObjectivePass& pass) {
  const auto* batch = pass.host ? dynamic_cast<const PairBatch*>(pass.host->extra.get()) : nullptr;
  const bool learns = pass.context.is_recording();
  if (batch && !learns && !is_validating_) validation_ = {};
  if (batch) is_validating_ = !learns;
  weighted_pass(pass, [&](std::span<const float> logprobs) {
    PassTerms terms = no_terms(logprobs.size());
    if (!batch) return terms;
    // Losses are divided by the step's pairs later (count); the likelihood is a mean over tokens.
    const double nll =
        options_.nll_weight > 0 && batch->step_nll_tokens > 0
            ? options_.nll_weight * static_cast<double>(batch->step_pairs) / static_cast<double>(batch->step_nll_tokens)
            : 0;
    Sums& sums = learns ? sums_ : validation_;
    for (const PairBatch::Pair& pair : batch->pairs) {
      const PairTerms own = pair_loss(options_, score_of(pair.chosen, logprobs), score_of(pair.rejected, logprobs));
      double loss = own.loss;
      add_weights(pair.chosen, own.d_chosen, terms.weights);
      add_weights(pair.rejected, own.d_rejected, terms.weights);
      const int64_t begin = nll_includes_prompt(options_.loss) ? pair.chosen.prompt_first : pair.chosen.first;
      for (int64_t t = begin; nll > 0 && t < pair.chosen.first + pair.chosen.count; ++t) {
        loss -= nll * logprobs[static_cast<size_t>(t)];
        terms.weights[static_cast<size_t>(t)] += static_cast<float>(nll);
      }
      terms.losses[static_cast<size_t>(pair.chosen.first)] = static_cast<float>(loss);
      sums.pairs += 1;
      sums.right += own.reward_chosen > own.reward_rejected ? 1 : 0;
      sums.chosen += own.reward_chosen;
      sums.rejected += own.reward_rejected;
    }
    return terms;
  });
}

double PairObjective::count(const data::MicroBatch& batch) const {
  const auto* pairs = dynamic_cast<const PairBatch*>(batch.extra.get());
  return pairs ? static_cast<double>(pairs->pairs.size()) : 0;
}

std::vector<train::Objective::Metric> PairObjective::take_metrics() {
  const Sums s = std::exchange(sums_, {});
  // The last validation's stays until the next one: every line has it.
  return {{"accuracy", s.right, s.pairs},
          {"validation_accuracy", validation_.right, validation_.pairs},
          {"reward_chosen", s.chosen, s.pairs},
          {"reward_rejected", s.rejected, s.pairs}};
}

void KtoObjective::forward(const train::ObjectivePass& pass) {
  const auto* batch = pass.host ? dynamic_cast<const LabelledBatch*>(pass.host->extra.get()) : nullptr;
  const bool learns = pass.context.is_recording();
  weighted_pass(pass, [&](std::span<const float> logprobs) {
    PassTerms terms = no_terms(logprobs.size());
    if (!batch) return terms;
    std::vector<AnswerScore> mismatched;
    for (const LabelledBatch::Answer& answer : batch->answers) {
      if (answer.mismatched.count > 0) mismatched.push_back(score_of(answer.mismatched, logprobs));
    }
    const double kl = kto_kl(mismatched);
    for (const LabelledBatch::Answer& answer : batch->answers) {
      const KtoTerms own = kto_loss(options_, score_of(answer.span, logprobs), answer.is_desirable, kl);
      add_weights(answer.span, own.d_logp, terms.weights);
      terms.losses[static_cast<size_t>(answer.span.first)] = static_cast<float>(own.loss);
      if (!learns) continue;
      (answer.is_desirable ? sums_.wanted : sums_.unwanted) += 1;
      (answer.is_desirable ? sums_.reward_wanted : sums_.reward_unwanted) += own.reward;
    }
    if (learns && !batch->answers.empty()) {
      sums_.kl += kl;
      sums_.batches += 1;
    }
    return terms;
  });
}

double KtoObjective::count(const data::MicroBatch& batch) const {
  const auto* answers = dynamic_cast<const LabelledBatch*>(batch.extra.get());
  return answers ? static_cast<double>(answers->answers.size()) : 0;
}

std::vector<train::Objective::Metric> KtoObjective::take_metrics() {
  const Sums s = std::exchange(sums_, {});
  return {{"reward_wanted", s.reward_wanted, s.wanted},
          {"reward_unwanted", s.reward_unwanted, s.unwanted},
          {"kl", s.kl, s.batches}};
}

}  // namespace sinter::tune

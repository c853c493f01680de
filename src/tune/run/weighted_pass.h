// Objectives that are functions of tokens' log-probabilities: one forward of the blocks, the head without gradients to
// see the log-probabilities, then the head again with the weights that follow from them.
#pragma once
#include <functional>
#include <span>
#include <vector>

#include "train/objective.h"

namespace sinter::tune {

// What an objective makes of a micro-batch.
struct PassTerms {
  std::vector<float> losses;   // (T): their sum is the micro-batch's loss, before it is divided by the step's count
  std::vector<float> weights;  // (T): minus the derivative of that sum by each token's log-probability
};
using TermsOf = std::function<PassTerms(std::span<const float> logprobs)>;

// Called with the last hidden states before the terms are asked for: what an objective reads of them beside
// log-probabilities. What it allocates and records must not depend on values.
using BesideHead = std::function<void(const autograd::Variable& hidden)>;

// Runs the pass. Without a host batch (plans) nothing is looked at; without a tape only losses come out. The run's
// shape must have weights.
void weighted_pass(const train::ObjectivePass& pass, const TermsOf& terms_of, const BesideHead& beside = {});

}  // namespace sinter::tune

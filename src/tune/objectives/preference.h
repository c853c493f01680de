// Losses on preferred and rejected answers, and on answers that are wanted or not, as functions of log-probabilities.
// Each gives the loss and its derivatives; a model's backward pass takes it from there.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sinter::tune {

enum class PairLoss { sigmoid, hinge, ipo, cdpo, robust, simpo, cpo, orpo };
const std::vector<std::string>& pair_loss_names();
PairLoss parse_pair_loss(std::string_view name);  // throws base::Error with the nearest name

struct PairOptions {
  PairLoss loss = PairLoss::sigmoid;
  double beta = 0.1;
  double label_smoothing = 0;  // of cdpo and robust, and of simpo and cpo
  double gamma = 0.5;          // simpo: by how much the chosen mean should be larger, times beta
  double nll_weight = 0;       // what is added: the chosen answer's negative log-likelihood (cpo_alpha; orpo: 1)
};
// Whether the loss compares with a reference model.
bool uses_reference(PairLoss loss);
// Whether the negative log-likelihood is over the prompt too (orpo), or over the answer only.
bool nll_includes_prompt(PairLoss loss);
// Throws base::Error naming the value that is out of range.
void check_pair_options(const PairOptions& options);

// One answer to a prompt.
struct AnswerScore {
  double logp = 0;       // sum of the log-probabilities of its tokens
  double reference = 0;  // the same by the reference model
  int64_t tokens = 0;
};
struct PairTerms {
  double loss = 0;
  double d_chosen = 0, d_rejected = 0;  // d loss / d logp; of every token of the answer the same
  double reward_chosen = 0,
         reward_rejected = 0;  // beta times the log-ratio (or the log-probability without a reference)
};
// Without the negative log-likelihood, which is a sum over tokens of several pairs. With D = the difference of the
// log-ratios, s = sigmoid and e = label_smoothing:
//   sigmoid  -log s(beta D)                          hinge   max(0, 1 - beta D)
//   ipo      (A - 1 / (2 beta))^2, A the difference of log-ratios per token
//   cdpo     -(1 - e) log s(beta D) - e log s(-beta D)
//   robust   (-(1 - e) log s(beta D) + e log s(-beta D)) / (1 - 2e)
//   simpo    cdpo's with the difference of mean log-probabilities less gamma / beta
//   cpo      cdpo's with the difference of sums
//   orpo     -beta log s(the difference of the log-odds of the mean probabilities)
PairTerms pair_loss(const PairOptions& options, const AnswerScore& chosen, const AnswerScore& rejected);

struct KtoOptions {
  double beta = 0.1;
  double desirable_weight = 1, undesirable_weight = 1;
};
struct KtoTerms {
  double loss = 0, d_logp = 0, reward = 0;
};
// `kl`: kto_kl of the whole batch, taken as a constant.
KtoTerms kto_loss(const KtoOptions& options, const AnswerScore& answer, bool is_desirable, double kl);
// max(0, the mean log-ratio of answers to other prompts).
double kto_kl(std::span<const AnswerScore> mismatched);

// Bradley-Terry with a margin, and a pull of the rewards' sum to zero.
struct RewardTerms {
  double loss = 0, d_chosen = 0, d_rejected = 0;
};
RewardTerms reward_loss(double chosen, double rejected, double margin, double centering);

}  // namespace sinter::tune

// Losses of reinforcement learning as functions of log-probabilities: PPO with values, GRPO and its kin. Rows are
// answers; a row's spans have an element for each of its tokens.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sinter::tune {

// How far the policy's log-probability p of a token lies from the reference's r.
enum class KlEstimate { k1, k2, k3, absolute };  // p - r; (p - r)^2 / 2; exp(r - p) - 1 - (r - p); |p - r|
KlEstimate parse_kl_estimate(std::string_view name);
double kl_estimate(KlEstimate estimate, double logp, double reference);

// ---- PPO ----------------------------------------------------------------------------------------------------------

// Generalised advantage estimation over one row. returns = advantages + values. The value behind the last token is 0.
void estimate_advantages(std::span<const double> rewards, std::span<const double> values, double gamma, double lambda,
                         std::span<double> advantages, std::span<double> returns);

// Mean 0 (or as it was, without `shifts`) and variance 1 over all given values.
void whiten(std::span<double> values, bool shifts = true);

struct TokenTerms {
  double loss = 0, slope = 0;  // slope: by the log-probability, or by the value
  bool is_clipped = false;
};
// max(-A ratio, -A clip(ratio, 1 - low, 1 + high)), ratio = exp(logp - old).
TokenTerms clipped_policy_loss(double logp, double old, double advantage, double low, double high);
// 1/2 max((v - R)^2, (clip(v, old - range, old + range) - R)^2).
TokenTerms clipped_value_loss(double value, double old, double returned, double range);

// ---- GRPO ---------------------------------------------------------------------------------------------------------

enum class RewardScale { none, group, batch };  // what rewards less their group's mean are divided by
// sum: rewards weighted and added, then made advantages. normalize_first: each function's rewards made standard within
// the group, then weighted and added, then made standard over the batch.
enum class RewardSum { sum, normalize_first };
struct AdvantageOptions {
  int64_t group = 8;            // answers to one prompt, standing together
  std::vector<double> weights;  // of each reward function; empty: 1
  RewardScale scale = RewardScale::group;
  RewardSum sum = RewardSum::sum;
};
// rewards (rows, functions), NaN where a function gave none: a row without any has advantage 0 and counts for nothing.
// Standard deviations are the sample's, with 1e-4 added.
std::vector<double> group_advantages(const AdvantageOptions& options, std::span<const double> rewards,
                                     int64_t functions);

// DAPO's penalty of answers that come near the longest: 0 up to `longest - cache` tokens, falling to -1 at `longest`.
double overlong_penalty(int64_t tokens, int64_t longest, int64_t cache);

// How token losses add up: grpo the mean of the answers' means; bnpo and dapo (the same under one loss rule) over all
// tokens; dr_grpo over answers times the longest length; cispo as dapo with another token loss.
enum class GroupLoss { grpo, bnpo, dapo, dr_grpo, cispo };
struct GroupOptions {
  GroupLoss loss = GroupLoss::dapo;
  bool sequence_ratio = false;  // gspo: one ratio an answer, the exp of the mean log-ratio
  // Ratios are clipped to [1 - epsilon, 1 + epsilon_high] (0: as epsilon); for cispo epsilon_high is the highest
  // weight.
  double epsilon = 0.2, epsilon_high = 0;
  double delta = 0;             // > 0: no ratio counts above it, whatever the advantage's sign
  double beta = 0;              // weight of the KL term, by k3
  bool kl_times_ratio = false;  // the KL term times the importance ratio
  int64_t longest = 0;          // dr_grpo: tokens an answer can have
};
GroupLoss parse_group_loss(std::string_view name);
// Throws base::Error naming the value that is out of range.
void check_group_options(const GroupOptions& options);

struct GroupRow {
  std::span<const double> logp, old, reference;  // (tokens); reference may be empty when beta is 0
  double advantage = 0;
};
struct GroupTerms {
  double loss = 0;  // sum of the row's token losses
  double kl = 0;    // sum
  int64_t clipped_low = 0, clipped_high = 0;
};
// d_logp (tokens) receives the derivatives of `loss`.
GroupTerms group_loss(const GroupOptions& options, const GroupRow& row, std::span<double> d_logp);
// What the row's loss is multiplied by in a step of `rows` answers and `tokens` tokens in all.
double group_weight(const GroupOptions& options, int64_t row_tokens, int64_t rows, int64_t tokens);

// ---- distillation -------------------------------------------------------------------------------------------------

// Forward KL from a teacher of which the k most probable tokens are known: sum of p (log p - log q) over them, and over
// the rest as one. `teacher` and `student` are log-probabilities of those k tokens, by their own models' softmax at one
// temperature. d_student (k) receives the derivatives by the student's log-probabilities.
double distillation_loss(std::span<const double> teacher, std::span<const double> student, std::span<double> d_student);

}  // namespace sinter::tune

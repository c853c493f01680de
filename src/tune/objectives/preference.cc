#include "tune/objectives/preference.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/text.h"

namespace sinter::tune {
namespace {

double sigmoid(double x) { return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x)); }
double log_sigmoid(double x) { return std::min(x, 0.0) - std::log1p(std::exp(-std::abs(x))); }

// log(1 - exp(x)) for x < 0.
double log1m_exp(double x) { return x > -0.6931471805599453 ? std::log(-std::expm1(x)) : std::log1p(-std::exp(x)); }

struct Scalar {
  double loss, slope;
};
// -a log s(z) - b log s(-z) and its slope in z.
Scalar two_sided(double z, double a, double b) {
  return {-a * log_sigmoid(z) - b * log_sigmoid(-z), -a * sigmoid(-z) + b * sigmoid(z)};
}

}  // namespace

const std::vector<std::string>& pair_loss_names() {
  static const std::vector<std::string> kNames = {"sigmoid", "hinge", "ipo", "cdpo", "robust", "simpo", "cpo", "orpo"};
  return kNames;
}

PairLoss parse_pair_loss(std::string_view name) {
  const auto& names = pair_loss_names();
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end())
    base::fail("there is no preference loss '{}'{}; losses are {}", name, base::did_you_mean(name, names),
               fmt::join(names, ", "));
  return static_cast<PairLoss>(found - names.begin());
}

bool uses_reference(PairLoss loss) {
  return loss != PairLoss::simpo && loss != PairLoss::cpo && loss != PairLoss::orpo;
}
bool nll_includes_prompt(PairLoss loss) { return loss == PairLoss::orpo; }

void check_pair_options(const PairOptions& options) {
  SINTER_CHECK(options.beta > 0, "beta is {}, expected more than 0", options.beta);
  SINTER_CHECK(options.label_smoothing >= 0 && options.label_smoothing < 0.5,
               "label_smoothing is {}, expected 0 or more and less than 0.5", options.label_smoothing);
  const bool smooths = options.loss == PairLoss::cdpo || options.loss == PairLoss::robust ||
                       options.loss == PairLoss::simpo || options.loss == PairLoss::cpo;
  SINTER_CHECK(smooths || options.label_smoothing == 0,
               "the loss '{}' has no label_smoothing; cdpo is the sigmoid loss with it",
               pair_loss_names()[static_cast<size_t>(options.loss)]);
  SINTER_CHECK(options.nll_weight >= 0, "nll_weight is {}, expected 0 or more", options.nll_weight);
}

PairTerms pair_loss(const PairOptions& options, const AnswerScore& chosen, const AnswerScore& rejected) {
  const double beta = options.beta, e = options.label_smoothing;
  const auto n_chosen = static_cast<double>(std::max<int64_t>(chosen.tokens, 1)),
             n_rejected = static_cast<double>(std::max<int64_t>(rejected.tokens, 1));
  const bool has_reference = uses_reference(options.loss);
  const double good = chosen.logp - (has_reference ? chosen.reference : 0),
               bad = rejected.logp - (has_reference ? rejected.reference : 0);
  PairTerms out;
  // z is what the loss is a function of, dg and db its derivatives by the two sums.
  double z = beta * (good - bad), dg = beta, db = -beta;
  Scalar scalar{};
  switch (options.loss) {
    case PairLoss::sigmoid:
      scalar = two_sided(z, 1, 0);
      break;
    case PairLoss::hinge:
      scalar = {std::max(0.0, 1 - z), z < 1 ? -1.0 : 0.0};
      break;
    case PairLoss::ipo: {
      const double distance = good / n_chosen - bad / n_rejected - 1 / (2 * beta);
      scalar = {distance * distance, 2 * distance};
      dg = 1 / n_chosen;
      db = -1 / n_rejected;
      break;
    }
    case PairLoss::cdpo:
    case PairLoss::cpo:
      scalar = two_sided(z, 1 - e, e);
      break;
    case PairLoss::robust:
      scalar = two_sided(z, (1 - e) / (1 - 2 * e), -e / (1 - 2 * e));
      break;
    case PairLoss::simpo:
      dg = beta / n_chosen;
      db = -beta / n_rejected;
      scalar = two_sided(dg * good + db * bad - options.gamma, 1 - e, e);
      break;
    case PairLoss::orpo: {
      const double g = good / n_chosen, b = bad / n_rejected;
      z = (g - log1m_exp(g)) - (b - log1m_exp(b));  // difference of the log-odds
      const Scalar plain = two_sided(z, 1, 0);
      scalar = {beta * plain.loss, beta * plain.slope};
      dg = -1 / std::expm1(g) / n_chosen;  // d log-odds(g) / dg = 1 / (1 - exp g)
      db = 1 / std::expm1(b) / n_rejected;
      break;
    }
  }
  out.loss = scalar.loss;
  out.d_chosen = scalar.slope * dg;
  out.d_rejected = scalar.slope * db;
  const bool is_mean = options.loss == PairLoss::simpo || options.loss == PairLoss::orpo;
  out.reward_chosen = beta * good / (is_mean ? n_chosen : 1);
  out.reward_rejected = beta * bad / (is_mean ? n_rejected : 1);
  return out;
}

KtoTerms kto_loss(const KtoOptions& options, const AnswerScore& answer, bool is_desirable, double kl) {
  const double ratio = answer.logp - answer.reference, sign = is_desirable ? 1 : -1;
  const double weight = is_desirable ? options.desirable_weight : options.undesirable_weight;
  const double s = sigmoid(options.beta * sign * (ratio - kl));
  return {weight * (1 - s), -weight * s * (1 - s) * options.beta * sign, options.beta * ratio};
}

double kto_kl(std::span<const AnswerScore> mismatched) {
  if (mismatched.empty()) return 0;
  double sum = 0;
  for (const AnswerScore& one : mismatched) sum += one.logp - one.reference;
  return std::max(0.0, sum / static_cast<double>(mismatched.size()));
}

RewardTerms reward_loss(double chosen, double rejected, double margin, double centering) {
  const Scalar scalar = two_sided(chosen - rejected - margin, 1, 0);
  const double sum = chosen + rejected;
  return {scalar.loss + centering * sum * sum, scalar.slope + 2 * centering * sum, -scalar.slope + 2 * centering * sum};
}

}  // namespace sinter::tune

// Losses and gradients of GRPO and its kin.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "tune/objectives/policy.h"
#include "tune/verify/answers.h"

namespace sinter::tune {
namespace {

using Json = nlohmann::ordered_json;

AdvantageOptions advantage_options(const Json& one, const Json& given) {
  AdvantageOptions options;
  options.group = one.at("group").get<int64_t>();
  const auto scale = given.value("scale_rewards", std::string("group"));
  options.scale = scale == "none" ? RewardScale::none : scale == "batch" ? RewardScale::batch : RewardScale::group;
  if (given.contains("reward_weights")) options.weights = given["reward_weights"].get<std::vector<double>>();
  if (given.value("multi_objective_aggregation", std::string()) == "normalize_then_sum")
    options.sum = RewardSum::normalize_first;
  return options;
}

class GrpoCase {
 public:
  GrpoCase(const std::string& folder, const eval::VerifyOptions& options)
      : folder_(folder),
        case_(read_case(folder)),
        inputs_(read_tensors(folder + "/inputs.safetensors")),
        golden_(read_tensors(folder + "/golden.safetensors")),
        model_(path_of(folder, case_.at("base_model")), options) {
    const Numbers& prompt_mask = get(inputs_, "prompt_mask");
    answers_ =
        join(get(inputs_, "prompt_ids"), get(inputs_, "completion_ids"), lengths_of(get(inputs_, "completion_mask")),
             [&](int64_t r, int64_t c) { return prompt_mask.at(r, c) != 0; });
    old_ = answers_.of(get(inputs_, "old_per_token_logps"));
    reference_ = answers_.of(get(inputs_, "ref_per_token_logps"));
  }

  Checks run() {
    Checks checks;
    checks.push_back(compare("log-probabilities", flat(answers_.cut(model_.logps(answers_.rows))),
                             flat(answers_.of(get(golden_, "per_token_logps"))), kLossLimit));
    for (const auto& [name, given] : case_.at("advantages").items()) check_advantages(name, given, checks);
    for (const auto& [name, expected] : case_.at("expected").items()) check_variant(name, expected, checks);
    if (std::filesystem::exists(folder_ + "/soft_overlong_punishment.json")) check_overlong(checks);
    return checks;
  }

 private:
  void check_advantages(const std::string& name, const Json& given, Checks& checks) {
    const Numbers& all = get(inputs_, "rewards");
    const auto functions = given.at("reward_functions").get<int64_t>();
    std::vector<double> rewards;
    for (int64_t r = 0; r < all.rows(); ++r) {
      for (int64_t k = 0; k < functions; ++k) rewards.push_back(all.at(r, k));
    }
    checks.push_back(compare("advantages, " + name,
                             group_advantages(advantage_options(case_, given), rewards, functions),
                             get(inputs_, "advantages." + name).values, kLossLimit));
  }

  void check_overlong(Checks& checks) {
    const Json file = Json::parse(base::read_file(folder_ + "/soft_overlong_punishment.json"));
    std::vector<double> found;
    for (const auto& length : file.at("lengths"))
      found.push_back(overlong_penalty(length.get<int64_t>(), file.at("max_completion_len").get<int64_t>(),
                                       file.at("soft_punish_cache").get<int64_t>()));
    checks.push_back(compare("overlong penalty", found, file.at("punishment").get<std::vector<double>>(), 1e-12));
  }

  void check_variant(const std::string& name, const Json& expected, Checks& checks) {
    const Json& p = expected.at("trainer");
    GroupOptions options;
    options.loss = parse_group_loss(p.at("loss_type").get<std::string>());
    options.sequence_ratio = p.value("importance_sampling_level", std::string()) == "sequence";
    options.epsilon = p.value("epsilon", 0.2);
    options.epsilon_high = p.value("epsilon_high", 0.0);
    options.delta = p.value("delta", 0.0);
    options.beta = p.value("beta", 0.0);
    options.kl_times_ratio = p.value("use_bias_correction_kl", false);
    options.longest = case_.at("max_completion_length").get<int64_t>();
    const std::vector<double>& advantages =
        get(inputs_, "advantages." + expected.at("advantages").get<std::string>()).values;
    const bool is_given = expected.at("old_logprobs") == "given";
    const double loss = pass(options, advantages, is_given);
    checks.push_back(compare(name + " loss", loss, expected.at("loss").get<double>(), kLossLimit));
    const Json& metrics = expected.at("metrics");
    if (metrics.contains("kl")) checks.push_back(compare(name + " KL", kl_, metrics["kl"].get<double>(), kLossLimit));
    if (metrics.contains("clip_ratio/low_mean")) {
      checks.push_back(compare(name + " clipped below", low_, metrics["clip_ratio/low_mean"].get<double>(), 1e-6));
      checks.push_back(compare(name + " clipped above", high_, metrics["clip_ratio/high_mean"].get<double>(), 1e-6));
    }
    const bool has_gradients = std::any_of(golden_.begin(), golden_.end(),
                                           [&](const auto& entry) { return entry.first.starts_with(name + ".grad."); });
    if (has_gradients)
      checks.push_back(compare_gradients(name + " gradients", model_.gradients(), golden_, name + ".grad."));
    append(checks, follow_training(name, case_.at("training"), expected, model_,
                                   [&] { return pass(options, advantages, is_given); }));
  }

  double pass(const GroupOptions& options, const std::vector<double>& advantages, bool is_given) {
    const AnswerValues logps = answers_.cut(model_.logps(answers_.rows));
    AnswerValues slopes = logps;
    const auto rows = static_cast<int64_t>(logps.size()), tokens = static_cast<int64_t>(answers_.num_tokens());
    double loss = 0;
    kl_ = low_ = high_ = 0;
    for (size_t r = 0; r < logps.size(); ++r) {
      const GroupTerms terms =
          group_loss(options, {logps[r], is_given ? old_[r] : logps[r], reference_[r], advantages[r]}, slopes[r]);
      const auto n = static_cast<double>(logps[r].size());
      const double weight = group_weight(options, static_cast<int64_t>(logps[r].size()), rows, tokens);
      loss += weight * terms.loss;
      for (double& s : slopes[r]) s *= weight;
      // The answers' figures are means over all tokens; a whole answer's ratio counts once for each.
      kl_ += terms.kl / static_cast<double>(tokens);
      const double share =
          options.sequence_ratio ? 1 / (n * static_cast<double>(rows)) : 1.0 / static_cast<double>(tokens);
      low_ += static_cast<double>(terms.clipped_low) * share;
      high_ += static_cast<double>(terms.clipped_high) * share;
    }
    model_.backward(answers_.rows, answers_.spread(slopes));
    return loss;
  }

  std::string folder_;
  Json case_;
  Tensors inputs_, golden_;
  ModelPass model_;
  Answers answers_;
  AnswerValues old_, reference_;
  double kl_ = 0, low_ = 0, high_ = 0;
};

}  // namespace

Checks verify_grpo(const std::string& folder, const eval::VerifyOptions& options) {
  return GrpoCase(folder, options).run();
}

}  // namespace sinter::tune

// Losses and gradients of PPO with a value head or a value model, and of GRPO and its kin.
#include "tune/objectives/policy.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "tune/verify/model_pass.h"

namespace sinter::tune {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kLossLimit = 1e-4;

// Prompts and the answers behind them, and where each answer begins.
struct Answers {
  TokenRows rows;
  std::vector<size_t> begins, lengths;
  // A (B, R) tensor's values of each row's answer.
  std::vector<std::vector<double>> of(const Numbers& values) const {
    std::vector<std::vector<double>> out;
    for (size_t r = 0; r < rows.size(); ++r) {
      out.emplace_back();
      for (size_t t = 0; t < lengths[r]; ++t)
        out.back().push_back(values.at(static_cast<int64_t>(r), static_cast<int64_t>(t)));
    }
    return out;
  }
  // The answers' values of what the model gave for every token.
  std::vector<std::vector<double>> cut(const RowValues& all) const {
    std::vector<std::vector<double>> out;
    for (size_t r = 0; r < rows.size(); ++r)
      out.emplace_back(all[r].begin() + static_cast<ptrdiff_t>(begins[r]),
                       all[r].begin() + static_cast<ptrdiff_t>(begins[r] + lengths[r]));
    return out;
  }
  size_t num_tokens() const {
    size_t sum = 0;
    for (size_t n : lengths) sum += n;
    return sum;
  }
};

// `lengths`: tokens of each row of `answers` that are real. Prompts are padded by `pad` on the left.
Answers join(const Numbers& prompts, const Numbers& answers, std::vector<size_t> lengths,
             const std::function<bool(int64_t row, int64_t column)>& is_real) {
  Answers out;
  out.lengths = std::move(lengths);
  for (int64_t r = 0; r < prompts.rows(); ++r) {
    out.rows.emplace_back();
    for (int64_t c = 0; c < prompts.columns(); ++c) {
      if (is_real(r, c)) out.rows.back().push_back(static_cast<int32_t>(prompts.at(r, c)));
    }
    out.begins.push_back(out.rows.back().size());
    for (size_t t = 0; t < out.lengths[static_cast<size_t>(r)]; ++t)
      out.rows.back().push_back(static_cast<int32_t>(answers.at(r, static_cast<int64_t>(t))));
  }
  return out;
}

std::vector<double> flat(const std::vector<std::vector<double>>& rows) {
  std::vector<double> out;
  for (const auto& row : rows) out.insert(out.end(), row.begin(), row.end());
  return out;
}

// Whitens over all rows at once.
void whiten_rows(std::vector<std::vector<double>>& rows, bool shifts) {
  std::vector<double> all = flat(rows);
  whiten(all, shifts);
  size_t at = 0;
  for (auto& row : rows) {
    for (double& v : row) v = all[at++];
  }
}

// What whitening without a shift of the mean makes of a zero beside these values.
double whitened_zero(const std::vector<double>& values) {
  double mean = 0, squares = 0;
  for (double v : values) mean += v / static_cast<double>(values.size());
  for (double v : values) squares += (v - mean) * (v - mean);
  const double variance = squares / static_cast<double>(values.size() - 1);
  return mean - mean / std::sqrt(variance + 1e-8);
}

struct PpoParameters {
  KlEstimate kl = KlEstimate::k1;
  double kl_coef, gamma, lambda, clip, clip_value, value_weight;
  bool whitens_rewards;
  explicit PpoParameters(const Json& p)
      : kl_coef(p.at("kl_coef")),
        gamma(p.at("gamma")),
        lambda(p.at("lam")),
        clip(p.at("cliprange")),
        clip_value(p.at("cliprange_value")),
        value_weight(p.at("vf_coef")),
        whitens_rewards(p.at("whiten_rewards")) {
    const std::string name =
        p.contains("kl_penalty") ? p["kl_penalty"].get<std::string>() : p.value("kl_estimator", std::string("k1"));
    kl = parse_kl_estimate(name == "kl" ? "k1" : name == "mse" ? "k2" : name);
  }
};

// What one pass of PPO needs besides the policy: rewards of every token, and what follows from them.
struct Rollout {
  std::vector<std::vector<double>> old, values, rewards, advantages, returns;
};

void estimate(const PpoParameters& p, Rollout& rollout) {
  rollout.advantages = rollout.returns = rollout.rewards;
  for (size_t r = 0; r < rollout.rewards.size(); ++r)
    estimate_advantages(rollout.rewards[r], rollout.values[r], p.gamma, p.lambda, rollout.advantages[r],
                        rollout.returns[r]);
}

// Means over the answers' tokens: of the policy's loss by logps, of the value's by values. Slopes are written over
// them.
double policy_part(const PpoParameters& p, const Rollout& rollout, std::vector<std::vector<double>>& logps) {
  double loss = 0, n = 0;
  for (const auto& row : logps) n += static_cast<double>(row.size());
  for (size_t r = 0; r < logps.size(); ++r) {
    for (size_t t = 0; t < logps[r].size(); ++t) {
      const TokenTerms terms =
          clipped_policy_loss(logps[r][t], rollout.old[r][t], rollout.advantages[r][t], p.clip, p.clip);
      loss += terms.loss / n;
      logps[r][t] = terms.slope / n;
    }
  }
  return loss;
}
double value_part(const PpoParameters& p, const Rollout& rollout, std::vector<std::vector<double>>& values) {
  double loss = 0, n = 0;
  for (const auto& row : values) n += static_cast<double>(row.size());
  for (size_t r = 0; r < values.size(); ++r) {
    for (size_t t = 0; t < values[r].size(); ++t) {
      const TokenTerms terms =
          clipped_value_loss(values[r][t], rollout.values[r][t], rollout.returns[r][t], p.clip_value);
      loss += terms.loss / n;
      values[r][t] = p.value_weight * terms.slope / n;
    }
  }
  return loss;
}

// A linear layer on the hidden states before each token of the answers: values, and from their slopes its gradients.
struct ValueHead {
  std::vector<float> weight, d_weight;
  std::vector<float> bias{0}, d_bias{0};

  std::vector<std::vector<double>> values(const Answers& answers, const RowValues& hidden,
                                          const std::vector<size_t>& lengths) const {
    const size_t C = weight.size();
    std::vector<std::vector<double>> out;
    for (size_t r = 0; r < answers.rows.size(); ++r) {
      out.emplace_back(lengths[r], static_cast<double>(bias[0]));
      for (size_t t = 0; t < lengths[r]; ++t) {
        const size_t at = (answers.begins[r] + t - 1) * C;
        for (size_t c = 0; c < C; ++c) out.back()[t] += hidden[r][at + c] * weight[c];
      }
    }
    return out;
  }
  RowValues slopes(const Answers& answers, const RowValues& hidden, const std::vector<std::vector<double>>& d_values) {
    const size_t C = weight.size();
    std::vector<double> dw(C, 0.0);
    double db = 0;
    RowValues d_hidden;
    for (size_t r = 0; r < answers.rows.size(); ++r) {
      d_hidden.emplace_back(answers.rows[r].size() * C, 0.0);
      for (size_t t = 0; t < d_values[r].size(); ++t) {
        const size_t at = (answers.begins[r] + t - 1) * C;
        for (size_t c = 0; c < C; ++c) {
          d_hidden.back()[at + c] += d_values[r][t] * weight[c];
          dw[c] += d_values[r][t] * hidden[r][at + c];
        }
        db += d_values[r][t];
      }
    }
    d_weight.assign(dw.begin(), dw.end());
    d_bias = {static_cast<float>(db)};
    return d_hidden;
  }
};

// Slopes of the answers' tokens as slopes of every token.
RowValues spread(const Answers& answers, const std::vector<std::vector<double>>& slopes) {
  RowValues out;
  for (size_t r = 0; r < answers.rows.size(); ++r) {
    out.emplace_back(answers.rows[r].size(), 0.0);
    std::copy(slopes[r].begin(), slopes[r].end(), out.back().begin() + static_cast<ptrdiff_t>(answers.begins[r]));
  }
  return out;
}

void append(Checks& checks, Checks more) {
  for (eval::VerifyCheck& c : more) checks.push_back(std::move(c));
}

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
    const Numbers& mask = get(inputs_, "completion_mask");
    std::vector<size_t> lengths;
    for (int64_t r = 0; r < mask.rows(); ++r) {
      lengths.push_back(0);
      for (int64_t c = 0; c < mask.columns(); ++c) lengths.back() += mask.at(r, c) != 0;
    }
    const Numbers& prompt_mask = get(inputs_, "prompt_mask");
    answers_ = join(get(inputs_, "prompt_ids"), get(inputs_, "completion_ids"), lengths,
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
    const std::vector<std::vector<double>> logps = answers_.cut(model_.logps(answers_.rows));
    std::vector<std::vector<double>> slopes = logps;
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
    model_.backward(answers_.rows, spread(answers_, slopes));
    return loss;
  }

  std::string folder_;
  Json case_;
  Tensors inputs_, golden_;
  ModelPass model_;
  Answers answers_;
  std::vector<std::vector<double>> old_, reference_;
  double kl_ = 0, low_ = 0, high_ = 0;
};

}  // namespace

Checks verify_ppo_value_head(const std::string& folder, const eval::VerifyOptions& options) {
  const Json one = read_case(folder);
  const Tensors inputs = read_tensors(folder + "/inputs.safetensors"),
                golden = read_tensors(folder + "/golden.safetensors");
  ModelPass model(path_of(folder, one.at("base_model")), options);
  ValueHead head;
  for (double w : get(inputs, "v_head.weight").values) head.weight.push_back(static_cast<float>(w));
  head.bias = {static_cast<float>(get(inputs, "v_head.bias").values[0])};
  const Numbers& mask = get(inputs, "response_mask");
  std::vector<size_t> lengths;
  for (int64_t r = 0; r < mask.rows(); ++r) {
    lengths.push_back(0);
    for (int64_t c = 0; c < mask.columns(); ++c) lengths.back() += mask.at(r, c) != 0;
  }
  const Numbers& queries = get(inputs, "query_ids");
  const Answers answers =
      join(queries, get(inputs, "response_ids"), lengths, [&](int64_t r, int64_t c) { return queries.at(r, c) != 0; });
  Checks checks;
  checks.push_back(compare("log-probabilities", flat(answers.cut(model.logps(answers.rows))),
                           flat(answers.of(get(golden, "logprobs"))), kLossLimit));
  checks.push_back(compare("values", flat(head.values(answers, model.hidden(answers.rows), lengths)),
                           flat(answers.of(get(golden, "vpreds"))), kLossLimit));
  for (const auto& [name, expected] : one.at("expected").items()) {
    const PpoParameters p(expected.at("parameters"));
    Rollout rollout{answers.of(get(inputs, "old_logprobs")), answers.of(get(inputs, "values")), {}, {}, {}};
    rollout.rewards = answers.of(get(inputs, "ref_logprobs"));
    for (size_t r = 0; r < lengths.size(); ++r) {
      for (size_t t = 0; t < lengths[r]; ++t) {
        double& reward = rollout.rewards[r][t];
        reward = -p.kl_coef * kl_estimate(p.kl, rollout.old[r][t], reward);
        if (t + 1 == lengths[r]) reward += get(inputs, "scores").values[r];
      }
    }
    checks.push_back(compare(name + " rewards", flat(rollout.rewards), flat(answers.of(get(golden, name + ".rewards"))),
                             kLossLimit));
    const double behind = p.whitens_rewards ? whitened_zero(flat(rollout.rewards)) : 0;
    if (p.whitens_rewards) whiten_rows(rollout.rewards, false);
    // That release leaves what whitening makes of the zeros behind an answer, and its advantages begin there.
    for (size_t r = 0; r < lengths.size(); ++r) {
      rollout.rewards[r].resize(static_cast<size_t>(mask.columns()), behind);
      rollout.values[r].resize(rollout.rewards[r].size(), 0.0);
    }
    estimate(p, rollout);
    for (size_t r = 0; r < lengths.size(); ++r) {
      for (auto* rows : {&rollout.rewards, &rollout.values, &rollout.advantages, &rollout.returns})
        (*rows)[r].resize(lengths[r]);
    }
    checks.push_back(compare(name + " returns", flat(rollout.returns), flat(answers.of(get(golden, name + ".returns"))),
                             kLossLimit));
    whiten_rows(rollout.advantages, true);
    checks.push_back(compare(name + " advantages", flat(rollout.advantages),
                             flat(answers.of(get(golden, name + ".advantages"))), kLossLimit));
    double policy_loss = 0, value_loss = 0;
    auto pass = [&] {
      std::vector<std::vector<double>> logps = answers.cut(model.logps(answers.rows));
      const RowValues hidden = model.hidden(answers.rows);
      std::vector<std::vector<double>> values = head.values(answers, hidden, lengths);
      policy_loss = policy_part(p, rollout, logps);
      value_loss = value_part(p, rollout, values);
      model.backward(answers.rows, spread(answers, logps), head.slopes(answers, hidden, values));
      return policy_loss + p.value_weight * value_loss;
    };
    const double loss = pass();
    checks.push_back(compare(name + " loss", loss, expected.at("loss").get<double>(), kLossLimit));
    checks.push_back(compare(name + " policy loss", policy_loss, expected.at("policy_loss").get<double>(), kLossLimit));
    checks.push_back(compare(name + " value loss", value_loss, expected.at("value_loss").get<double>(), kLossLimit));
    auto gradients = model.gradients();
    gradients["v_head.weight"].assign(head.d_weight.begin(), head.d_weight.end());
    gradients["v_head.bias"].assign(head.d_bias.begin(), head.d_bias.end());
    checks.push_back(compare_gradients(name + " gradients", gradients, golden, name + ".grad."));
    const std::vector<FlatParameter> begin = model.take();
    const ValueHead begin_head = head;
    append(checks, follow_training(
                       name, one.at("training"), expected, pass,
                       [&] {
                         std::vector<FlatParameter> all = model.take();
                         all.push_back({true, head.weight, head.d_weight});
                         all.push_back({false, head.bias, head.d_bias});
                         return all;
                       },
                       [&](const std::vector<FlatParameter>& all) {
                         model.put(all, 0);
                         head.weight = all[all.size() - 2].values;
                         head.bias = all.back().values;
                       }));
    model.put(begin, 0);
    head = begin_head;
  }
  return checks;
}

Checks verify_ppo_value_model(const std::string& folder, const eval::VerifyOptions& options) {
  const Json one = read_case(folder);
  const Tensors inputs = read_tensors(folder + "/inputs.safetensors"),
                golden = read_tensors(folder + "/golden.safetensors");
  ModelPass policy(path_of(folder, one.at("base_model")), options);
  ModelPass value = ModelPass::open_classifier(path_of(folder, one.at("value_model")), options);
  const double temperature = one.at("temperature").get<double>() + 1e-7;
  const Numbers &queries = get(inputs, "query_ids"), &responses = get(inputs, "response_ids");
  // The value is asked for once more, behind the last token, where the row has room: there the score stands.
  std::vector<size_t> lengths, value_lengths;
  for (double last : get(inputs, "sequence_lengths").values) {
    lengths.push_back(static_cast<size_t>(last) + 1);
    value_lengths.push_back(std::min(lengths.back() + 1, static_cast<size_t>(responses.columns())));
  }
  const Answers answers =
      join(queries, responses, lengths, [&](int64_t r, int64_t c) { return queries.at(r, c) != 0; });
  Answers longer = answers;  // for reading tensors of the longer mask
  longer.lengths = value_lengths;
  ValueHead head;
  head.weight = value.score;
  Checks checks;
  checks.push_back(compare("log-probabilities", flat(answers.cut(policy.logps(answers.rows, temperature))),
                           flat(answers.of(get(golden, "new_logprobs"))), kLossLimit));
  checks.push_back(compare("values", flat(head.values(answers, value.hidden(answers.rows), value_lengths)),
                           flat(longer.of(get(golden, "vpred"))), kLossLimit));
  for (const auto& [name, expected] : one.at("expected").items()) {
    const PpoParameters p(expected.at("parameters"));
    Rollout rollout{answers.of(get(inputs, "old_logprobs")), longer.of(get(inputs, "values")), {}, {}, {}};
    const auto reference = answers.of(get(inputs, "ref_logprobs"));
    for (size_t r = 0; r < lengths.size(); ++r) {
      rollout.rewards.emplace_back(value_lengths[r], 0.0);
      for (size_t t = 0; t < lengths[r]; ++t)
        rollout.rewards[r][t] = -p.kl_coef * kl_estimate(p.kl, rollout.old[r][t], reference[r][t]);
      rollout.rewards[r].back() += get(inputs, "scores").values[r];
    }
    if (p.whitens_rewards) whiten_rows(rollout.rewards, false);
    checks.push_back(
        compare(name + " rewards", flat(rollout.rewards), flat(longer.of(get(golden, name + ".rewards"))), kLossLimit));
    estimate(p, rollout);
    checks.push_back(
        compare(name + " returns", flat(rollout.returns), flat(longer.of(get(golden, name + ".returns"))), kLossLimit));
    for (size_t r = 0; r < lengths.size(); ++r) rollout.advantages[r].resize(lengths[r]);
    whiten_rows(rollout.advantages, true);
    checks.push_back(compare(name + " advantages", flat(rollout.advantages),
                             flat(answers.of(get(golden, name + ".advantages"))), kLossLimit));
    double policy_loss = 0, value_loss = 0;
    auto pass = [&] {
      std::vector<std::vector<double>> logps = answers.cut(policy.logps(answers.rows, temperature));
      const RowValues hidden = value.hidden(answers.rows);
      std::vector<std::vector<double>> values = head.values(answers, hidden, value_lengths);
      policy_loss = policy_part(p, rollout, logps);
      value_loss = value_part(p, rollout, values);
      policy.backward(answers.rows, spread(answers, logps), {}, temperature);
      value.backward(answers.rows, {}, head.slopes(answers, hidden, values));
      return policy_loss + p.value_weight * value_loss;
    };
    const double loss = pass();
    checks.push_back(compare(name + " loss", loss, expected.at("loss").get<double>(), kLossLimit));
    checks.push_back(compare(name + " policy loss", policy_loss, expected.at("policy_loss").get<double>(), kLossLimit));
    checks.push_back(compare(name + " value loss", value_loss, expected.at("value_loss").get<double>(), kLossLimit));
    checks.push_back(compare_gradients(name + " policy gradients", policy.gradients(), golden, name + ".policy.grad."));
    auto gradients = value.gradients();
    gradients["score.weight"].assign(head.d_weight.begin(), head.d_weight.end());
    checks.push_back(compare_gradients(name + " value gradients", gradients, golden, name + ".value.grad."));
    const std::vector<FlatParameter> begin = policy.take(), begin_value = value.take();
    const ValueHead begin_head = head;
    append(checks, follow_training(
                       name, one.at("training"), expected, pass,
                       [&] {
                         std::vector<FlatParameter> all = policy.take();
                         for (FlatParameter& one_more : value.take()) all.push_back(std::move(one_more));
                         all.push_back({true, head.weight, head.d_weight});
                         return all;
                       },
                       [&](const std::vector<FlatParameter>& all) {
                         policy.put(all, 0);
                         value.put(all, begin.size());
                         head.weight = all.back().values;
                       }));
    policy.put(begin, 0);
    value.put(begin_value, 0);
    head = begin_head;
  }
  return checks;
}

Checks verify_grpo(const std::string& folder, const eval::VerifyOptions& options) {
  return GrpoCase(folder, options).run();
}

}  // namespace sinter::tune

// Losses and gradients of PPO with a value head or a value model.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tune/objectives/policy.h"
#include "tune/verify/answers.h"

namespace sinter::tune {
namespace {

using Json = nlohmann::ordered_json;

// Whitens over all rows at once.
void whiten_rows(AnswerValues& rows, bool shifts) {
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
  AnswerValues old, values, rewards, advantages, returns;
};

// `lengths`: of the rewards. An answer's score stands at the last of them.
AnswerValues rewards_of(const PpoParameters& p, const AnswerValues& old, const AnswerValues& reference,
                        const std::vector<size_t>& lengths, const std::vector<double>& scores) {
  AnswerValues rewards;
  for (size_t r = 0; r < old.size(); ++r) {
    rewards.emplace_back(lengths[r], 0.0);
    for (size_t t = 0; t < old[r].size(); ++t)
      rewards.back()[t] = -p.kl_coef * kl_estimate(p.kl, old[r][t], reference[r][t]);
    rewards.back().back() += scores[r];
  }
  return rewards;
}

void estimate(const PpoParameters& p, Rollout& rollout) {
  rollout.advantages = rollout.returns = rollout.rewards;
  for (size_t r = 0; r < rollout.rewards.size(); ++r)
    estimate_advantages(rollout.rewards[r], rollout.values[r], p.gamma, p.lambda, rollout.advantages[r],
                        rollout.returns[r]);
}

// Means over the answers' tokens: of the policy's loss by logps, of the value's by values. Slopes are written over
// them.
double policy_part(const PpoParameters& p, const Rollout& rollout, AnswerValues& logps) {
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
double value_part(const PpoParameters& p, const Rollout& rollout, AnswerValues& values) {
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

// That release leaves what whitening makes of the zeros behind an answer, up to `columns`, and its advantages begin
// there.
void estimate_padded(const PpoParameters& p, Rollout& rollout, const std::vector<size_t>& lengths, size_t columns) {
  const double behind = p.whitens_rewards ? whitened_zero(flat(rollout.rewards)) : 0;
  if (p.whitens_rewards) whiten_rows(rollout.rewards, false);
  for (size_t r = 0; r < lengths.size(); ++r) {
    rollout.rewards[r].resize(columns, behind);
    rollout.values[r].resize(columns, 0.0);
  }
  estimate(p, rollout);
  for (size_t r = 0; r < lengths.size(); ++r) {
    for (auto* rows : {&rollout.rewards, &rollout.values, &rollout.advantages, &rollout.returns})
      (*rows)[r].resize(lengths[r]);
  }
}

void compare_losses(const std::string& name, const Json& expected, double loss, double policy, double value,
                    Checks& checks) {
  checks.push_back(compare(name + " loss", loss, expected.at("loss").get<double>(), kLossLimit));
  checks.push_back(compare(name + " policy loss", policy, expected.at("policy_loss").get<double>(), kLossLimit));
  checks.push_back(compare(name + " value loss", value, expected.at("value_loss").get<double>(), kLossLimit));
}

// A linear layer on the hidden states before each token of the answers: values, and from their slopes its gradients.
struct ValueHead {
  std::vector<float> weight, d_weight;
  std::vector<float> bias{0}, d_bias{0};

  AnswerValues values(const Answers& answers, const RowValues& hidden, const std::vector<size_t>& lengths) const {
    const size_t C = weight.size();
    AnswerValues out;
    for (size_t r = 0; r < answers.rows.size(); ++r) {
      out.emplace_back(lengths[r], static_cast<double>(bias[0]));
      for (size_t t = 0; t < lengths[r]; ++t) {
        const size_t at = (answers.begins[r] + t - 1) * C;
        for (size_t c = 0; c < C; ++c) out.back()[t] += hidden[r][at + c] * weight[c];
      }
    }
    return out;
  }
  RowValues slopes(const Answers& answers, const RowValues& hidden, const AnswerValues& d_values) {
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
  const std::vector<size_t> lengths = lengths_of(mask);
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
    rollout.rewards =
        rewards_of(p, rollout.old, answers.of(get(inputs, "ref_logprobs")), lengths, get(inputs, "scores").values);
    checks.push_back(compare(name + " rewards", flat(rollout.rewards), flat(answers.of(get(golden, name + ".rewards"))),
                             kLossLimit));
    estimate_padded(p, rollout, lengths, static_cast<size_t>(mask.columns()));
    checks.push_back(compare(name + " returns", flat(rollout.returns), flat(answers.of(get(golden, name + ".returns"))),
                             kLossLimit));
    whiten_rows(rollout.advantages, true);
    checks.push_back(compare(name + " advantages", flat(rollout.advantages),
                             flat(answers.of(get(golden, name + ".advantages"))), kLossLimit));
    double policy_loss = 0, value_loss = 0;
    auto pass = [&] {
      AnswerValues logps = answers.cut(model.logps(answers.rows));
      const RowValues hidden = model.hidden(answers.rows);
      AnswerValues values = head.values(answers, hidden, lengths);
      policy_loss = policy_part(p, rollout, logps);
      value_loss = value_part(p, rollout, values);
      model.backward(answers.rows, answers.spread(logps), head.slopes(answers, hidden, values));
      return policy_loss + p.value_weight * value_loss;
    };
    const double loss = pass();
    compare_losses(name, expected, loss, policy_loss, value_loss, checks);
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
    rollout.rewards = rewards_of(p, rollout.old, answers.of(get(inputs, "ref_logprobs")), value_lengths,
                                 get(inputs, "scores").values);
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
      AnswerValues logps = answers.cut(policy.logps(answers.rows, temperature));
      const RowValues hidden = value.hidden(answers.rows);
      AnswerValues values = head.values(answers, hidden, value_lengths);
      policy_loss = policy_part(p, rollout, logps);
      value_loss = value_part(p, rollout, values);
      policy.backward(answers.rows, answers.spread(logps), {}, temperature);
      value.backward(answers.rows, {}, head.slopes(answers, hidden, values));
      return policy_loss + p.value_weight * value_loss;
    };
    const double loss = pass();
    compare_losses(name, expected, loss, policy_loss, value_loss, checks);
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

}  // namespace sinter::tune

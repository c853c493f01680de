// Losses and gradients of supervised tuning, preferences and rewards.
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "eval/golden/golden.h"
#include "tune/data/pack.h"
#include "tune/data/render.h"
#include "tune/objectives/preference.h"
#include "tune/verify/model_pass.h"

namespace sinter::tune {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kLossLimit = 1e-4;

// Rows of a batch with a weight for every token's log-probability.
struct WeightedRows {
  TokenRows rows;
  RowValues weights;
  double count = 0;
};

// Sum of weights times the negative log-likelihood, over the count; leaves the gradients.
double weighted_loss(ModelPass& model, const WeightedRows& batch) {
  const RowValues logps = model.logps(batch.rows);
  RowValues slopes = batch.weights;
  double loss = 0;
  for (size_t r = 0; r < slopes.size(); ++r) {
    for (size_t t = 0; t < slopes[r].size(); ++t) {
      slopes[r][t] = t == 0 ? 0 : -batch.weights[r][t] / batch.count;
      loss += slopes[r][t] * logps[r][t];
    }
  }
  model.backward(batch.rows, slopes);
  return loss;
}

// What the answers' trainer made of conversations must come out of ours: ids, labels, positions, boundaries.
Checks check_packed_inputs(const std::string& folder, const Json& one, const Tensors& inputs) {
  const std::string path = tokenizer_folder(folder, one.at("tokenizer"));
  const tokenizer::Tokenizer tokenizer = tokenizer::Tokenizer::load(path);
  const tokenizer::ChatTemplate chat = tokenizer::ChatTemplate::load(path);
  const Renderer renderer(tokenizer, &chat, {});
  const Json conversations = Json::parse(base::read_file(folder + "/conversations.json"));
  std::vector<Sample> samples;
  std::vector<int64_t> lengths;
  eval::CaseCounter ids("ids of conversations");
  for (const Json& row : conversations) {
    samples.push_back(renderer.sample(parse_record(row.dump(), {}, fmt::format("conversation {}", samples.size()))));
    lengths.push_back(samples.back().tokens.num_tokens());
    ids.expect(samples.back().tokens.ids == row.at("ids").get<std::vector<int32_t>>(), samples.back().origin);
  }
  const auto row_tokens = one.at("max_length").get<int64_t>();
  std::vector<double> tokens, labels, positions, boundaries{0};
  const std::vector<PackedRow> rows = pack_rows(lengths, row_tokens, PackStrategy::best_fit);
  for (const PackedRow& row : rows) {
    for (const Placement& p : row) {
      const TokenSegments& sample = samples[static_cast<size_t>(p.sample)].tokens;
      for (int64_t t = p.begin; t < p.end; ++t) {
        const auto at = static_cast<size_t>(t);
        tokens.push_back(sample.ids[at]);
        labels.push_back(t > p.begin && sample.weights[at] != 0 ? sample.ids[at] : -100);
        positions.push_back(static_cast<double>(t - p.begin));
      }
      boundaries.push_back(static_cast<double>(tokens.size()));
    }
  }
  return {ids.check(), compare("packed ids", tokens, get(inputs, "input_ids").values, 0),
          compare("labels", labels, get(inputs, "labels").values, 0),
          compare("positions", positions, get(inputs, "position_ids").values, 0),
          compare("boundaries", boundaries, get(inputs, "cu_seq_lens").values, 0)};
}

// Per-token log-probabilities of right-padded rows as (B, T - 1), 0 outside the answer.
std::vector<double> padded(const RowValues& logps, const RowValues& mask, int64_t columns) {
  std::vector<double> out;
  for (size_t r = 0; r < logps.size(); ++r) {
    for (size_t t = 1; t <= static_cast<size_t>(columns); ++t)
      out.push_back(t < logps[r].size() ? logps[r][t] * mask[r][t] : 0);
  }
  return out;
}

std::vector<double> sums(const std::vector<AnswerScore>& scores, bool reference) {
  std::vector<double> out;
  for (const AnswerScore& s : scores) out.push_back(reference ? s.reference : s.logp);
  return out;
}

class PairCase {
 public:
  PairCase(const std::string& folder, const eval::VerifyOptions& options)
      : case_(read_case(folder)),
        inputs_(read_tensors(folder + "/inputs.safetensors")),
        golden_(read_tensors(folder + "/golden.safetensors")),
        model_(path_of(folder, case_.at("base_model")), options),
        rows_(rows_of(get(inputs_, "input_ids"), get(inputs_, "attention_mask"))),
        mask_(kept(get(inputs_, "completion_mask"), get(inputs_, "attention_mask"))) {
    ModelPass reference(path_of(folder, case_.at("reference_model")), options);
    reference_ = reference.logps(rows_);
  }

  Checks run() {
    Checks checks;
    const RowValues logps = model_.logps(rows_);
    const int64_t columns = get(inputs_, "input_ids").columns() - 1;
    const std::vector<AnswerScore> scores = score_answers(logps, reference_, mask_);
    checks.push_back(compare("log-probabilities", padded(logps, mask_, columns), get(golden_, "per_token_logps").values,
                             kLossLimit));
    checks.push_back(compare("reference log-probabilities", padded(reference_, mask_, columns),
                             get(golden_, "ref_per_token_logps").values, kLossLimit));
    checks.push_back(compare("sums", sums(scores, false), get(golden_, "logps").values, kLossLimit));
    checks.push_back(compare("reference sums", sums(scores, true), get(golden_, "ref_logps").values, kLossLimit));
    for (const auto& [name, expected] : case_.at("expected").items()) check_variant(name, expected, checks);
    return checks;
  }

 private:
  void check_variant(const std::string& name, const Json& expected, Checks& checks) {
    const Json& parameters = expected.at("parameters");
    PairOptions options;
    options.loss = parse_pair_loss(expected.at("objective").get<std::string>());
    options.beta = parameters.value("beta", 0.1);
    options.label_smoothing = parameters.value("label_smoothing", 0.0);
    options.gamma = parameters.value("simpo_gamma", 0.0);
    options.nll_weight = options.loss == PairLoss::orpo ? 1 : parameters.value("cpo_alpha", 0.0);
    std::vector<double> losses;
    const double loss = pass(options, losses);
    checks.push_back(compare(name + " loss", loss, expected.at("loss").get<double>(), kLossLimit));
    checks.push_back(compare(name + " losses", losses, get(golden_, name + ".losses").values, kLossLimit));
    checks.push_back(compare_gradients(name + " gradients", model_.gradients(), golden_, name + ".grad."));
    for (eval::VerifyCheck& c :
         follow_training(name, case_.at("training"), expected, model_, [&] { return pass(options, losses); }))
      checks.push_back(std::move(c));
  }

  double pass(const PairOptions& options, std::vector<double>& losses) {
    const RowValues logps = model_.logps(rows_);
    const std::vector<AnswerScore> scores = score_answers(logps, reference_, mask_);
    const size_t pairs = rows_.size() / 2;
    std::vector<double> slope(rows_.size());
    double loss = 0;
    losses.clear();
    for (size_t i = 0; i < pairs; ++i) {
      const PairTerms terms = pair_loss(options, scores[i], scores[pairs + i]);
      losses.push_back(terms.loss);
      loss += terms.loss / static_cast<double>(pairs);
      slope[i] = terms.d_chosen / static_cast<double>(pairs);
      slope[pairs + i] = terms.d_rejected / static_cast<double>(pairs);
    }
    RowValues slopes = mask_;
    for (size_t r = 0; r < slopes.size(); ++r) {
      for (double& s : slopes[r]) s *= slope[r];
    }
    if (options.nll_weight > 0) loss += add_nll(options, logps, slopes);
    model_.backward(rows_, slopes);
    return loss;
  }

  double add_nll(const PairOptions& options, const RowValues& logps, RowValues& slopes) const {
    const bool everything = nll_includes_prompt(options.loss);
    double count = 0, sum = 0;
    for (int turn = 0; turn < 2; ++turn) {  // the count, then the sum
      for (size_t r = 0; r < rows_.size() / 2; ++r) {
        for (size_t t = 1; t < rows_[r].size(); ++t) {
          const double counts = everything || mask_[r][t] != 0;
          if (turn == 0) {
            count += counts;
          } else {
            sum -= counts * logps[r][t] / count;
            slopes[r][t] -= options.nll_weight * counts / count;
          }
        }
      }
    }
    return options.nll_weight * sum;
  }

  Json case_;
  Tensors inputs_, golden_;
  ModelPass model_;
  TokenRows rows_;
  RowValues mask_, reference_;
};

}  // namespace

Checks verify_sft_packed(const std::string& folder, const eval::VerifyOptions& options) {
  const Json one = read_case(folder);
  const Tensors inputs = read_tensors(folder + "/inputs.safetensors"),
                golden = read_tensors(folder + "/golden.safetensors");
  Checks checks = check_packed_inputs(folder, one, inputs);
  ModelPass model(path_of(folder, one.at("base_model")), options);
  const std::vector<double>&ids = get(inputs, "input_ids").values, &labels = get(inputs, "labels").values,
        &starts = get(inputs, "cu_seq_lens").values;
  WeightedRows batch;
  for (size_t s = 0; s + 1 < starts.size(); ++s) {
    batch.rows.emplace_back();
    batch.weights.emplace_back();
    for (auto t = static_cast<size_t>(starts[s]); t < static_cast<size_t>(starts[s + 1]); ++t) {
      batch.rows.back().push_back(static_cast<int32_t>(ids[t]));
      batch.weights.back().push_back(labels[t] >= 0);
      batch.count += labels[t] >= 0;
    }
  }
  std::vector<double> logits;
  for (const auto& row : model.logits(batch.rows)) logits.insert(logits.end(), row.begin(), row.end());
  const std::vector<double>& tail = get(golden, "logits_tail").values;
  logits.erase(logits.begin(), logits.end() - static_cast<ptrdiff_t>(tail.size()));
  checks.push_back(compare("logits", logits, tail, kLossLimit));
  const double loss = weighted_loss(model, batch);
  checks.push_back(compare("supervised tokens", batch.count, one.at("expected").at("label_tokens").get<double>(), 0));
  checks.push_back(compare("loss", loss, get(golden, "loss").values[0], kLossLimit));
  checks.push_back(compare_gradients("gradients", model.gradients(), golden, "grad."));
  return checks;
}

Checks verify_sft_padded(const std::string& folder, const eval::VerifyOptions& options) {
  const Json one = read_case(folder);
  const Tensors inputs = read_tensors(folder + "/inputs.safetensors"),
                golden = read_tensors(folder + "/golden.safetensors");
  const Json& expected = one.at("expected");
  ModelPass model(path_of(folder, one.at("base_model")), options);
  WeightedRows batch;
  batch.rows = rows_of(get(inputs, "input_ids"), get(inputs, "attention_mask"));
  batch.weights = kept(get(inputs, "labels"), get(inputs, "attention_mask"));
  for (auto& row : batch.weights) {
    for (size_t t = 0; t < row.size(); ++t) {
      row[t] = t > 0 && row[t] >= 0;
      batch.count += row[t];
    }
  }
  Checks checks;
  checks.push_back(compare("supervised tokens", batch.count, expected.at("label_tokens").get<double>(), 0));
  checks.push_back(compare("loss", weighted_loss(model, batch), get(golden, "loss").values[0], kLossLimit));
  const auto gradients = model.gradients();
  checks.push_back(compare_gradients("gradients", gradients, golden, "grad."));
  // One row at a time by the same count: losses and gradients add up to the same.
  std::map<std::string, std::vector<double>> added;
  std::vector<double> losses;
  for (size_t r = 0; r < batch.rows.size(); ++r) {
    losses.push_back(weighted_loss(model, {{batch.rows[r]}, {batch.weights[r]}, batch.count}));
    for (const auto& [name, values] : model.gradients()) {
      std::vector<double>& sum = added[name];
      sum.resize(values.size());
      for (size_t i = 0; i < values.size(); ++i) sum[i] += values[i];
    }
  }
  checks.push_back(compare("losses of micro-batches", losses,
                           expected.at("micro_batch_losses").get<std::vector<double>>(), kLossLimit));
  checks.push_back(compare_gradients("gradients of micro-batches", added, golden, "grad."));
  for (eval::VerifyCheck& c :
       follow_training("adamw", one.at("training"), expected, model, [&] { return weighted_loss(model, batch); }))
    checks.push_back(std::move(c));
  return checks;
}

Checks verify_preference_pairs(const std::string& folder, const eval::VerifyOptions& options) {
  return PairCase(folder, options).run();
}

Checks verify_kto(const std::string& folder, const eval::VerifyOptions& options) {
  const Json one = read_case(folder);
  const Tensors inputs = read_tensors(folder + "/inputs.safetensors"),
                golden = read_tensors(folder + "/golden.safetensors");
  ModelPass model(path_of(folder, one.at("base_model")), options),
      reference(path_of(folder, one.at("reference_model")), options);
  auto read = [&](const std::string& prefix, TokenRows& rows, RowValues& mask) {
    const Numbers& real = get(inputs, prefix + "attention_mask");
    rows = rows_of(get(inputs, prefix + "input_ids"), real);
    mask = kept(get(inputs, prefix + "completion_mask"), real);
  };
  TokenRows rows, other_rows;
  RowValues mask, other_mask;
  read("", rows, mask);
  read("KL_", other_rows, other_mask);
  const RowValues by_reference = reference.logps(rows), other_by_reference = reference.logps(other_rows);
  const std::vector<double>& labels = get(inputs, "label").values;
  double kl = 0;
  auto pass = [&](const KtoOptions& kto) {
    const std::vector<AnswerScore> scores = score_answers(model.logps(rows), by_reference, mask);
    kl = kto_kl(score_answers(model.logps(other_rows), other_by_reference, other_mask));
    const auto n = static_cast<double>(rows.size());
    RowValues slopes = mask;
    double loss = 0;
    for (size_t r = 0; r < rows.size(); ++r) {
      const KtoTerms terms = kto_loss(kto, scores[r], labels[r] != 0, kl);
      loss += terms.loss / n;
      for (double& s : slopes[r]) s *= terms.d_logp / n;
    }
    model.backward(rows, slopes);
    return loss;
  };
  Checks checks;
  const std::vector<AnswerScore> scores = score_answers(model.logps(rows), by_reference, mask),
                                 others = score_answers(model.logps(other_rows), other_by_reference, other_mask);
  checks.push_back(compare("log-probabilities", sums(scores, false), get(golden, "logps").values, kLossLimit));
  checks.push_back(compare("reference", sums(scores, true), get(golden, "ref_logps").values, kLossLimit));
  checks.push_back(compare("mismatched", sums(others, false), get(golden, "KL_logps").values, kLossLimit));
  checks.push_back(compare("mismatched reference", sums(others, true), get(golden, "ref_KL_logps").values, kLossLimit));
  for (const auto& [name, expected] : one.at("expected").items()) {
    const Json& p = expected.at("parameters");
    const KtoOptions kto{p.at("beta"), p.at("desirable_weight"), p.at("undesirable_weight")};
    checks.push_back(compare(name + " loss", pass(kto), expected.at("loss").get<double>(), kLossLimit));
    checks.push_back(compare(name + " KL", kl, expected.at("metrics").at("kl").get<double>(), kLossLimit));
    checks.push_back(compare_gradients(name + " gradients", model.gradients(), golden, name + ".grad."));
    for (eval::VerifyCheck& c : follow_training(name, one.at("training"), expected, model, [&] { return pass(kto); }))
      checks.push_back(std::move(c));
  }
  return checks;
}

Checks verify_reward(const std::string& folder, const eval::VerifyOptions& options) {
  const Json one = read_case(folder);
  const Tensors inputs = read_tensors(folder + "/inputs.safetensors"),
                golden = read_tensors(folder + "/golden.safetensors");
  ModelPass model = ModelPass::open_classifier(path_of(folder, one.at("model")), options);
  const TokenRows rows = rows_of(get(inputs, "input_ids"), get(inputs, "attention_mask"));
  const std::vector<double>& margins = get(inputs, "margin").values;
  const auto C = static_cast<size_t>(model.width());
  const size_t pairs = rows.size() / 2;
  std::vector<float> d_score;
  std::vector<double> rewards;
  auto pass = [&](bool has_margin, double centering) {
    const RowValues hidden = model.hidden(rows);
    rewards.assign(rows.size(), 0);
    for (size_t r = 0; r < rows.size(); ++r) {
      for (size_t c = 0; c < C; ++c) rewards[r] += hidden[r][(rows[r].size() - 1) * C + c] * model.score[c];
    }
    std::vector<double> slope(rows.size());
    double loss = 0;
    for (size_t i = 0; i < pairs; ++i) {
      const RewardTerms t = reward_loss(rewards[i], rewards[pairs + i], has_margin ? margins[i] : 0, centering);
      loss += t.loss / static_cast<double>(pairs);
      slope[i] = t.d_chosen / static_cast<double>(pairs);
      slope[pairs + i] = t.d_rejected / static_cast<double>(pairs);
    }
    RowValues d_hidden;
    std::vector<double> gradient(C, 0.0);
    for (size_t r = 0; r < rows.size(); ++r) {
      d_hidden.emplace_back(rows[r].size() * C, 0.0);
      const size_t last = (rows[r].size() - 1) * C;
      for (size_t c = 0; c < C; ++c) {
        d_hidden.back()[last + c] = slope[r] * model.score[c];
        gradient[c] += slope[r] * hidden[r][last + c];
      }
    }
    d_score.assign(gradient.begin(), gradient.end());
    model.backward(rows, {}, d_hidden);
    return loss;
  };
  Checks checks;
  for (const auto& [name, expected] : one.at("expected").items()) {
    const bool has_margin = expected.at("margin");
    const double centering =
        expected.at("center_rewards_coefficient").is_null() ? 0 : expected["center_rewards_coefficient"].get<double>();
    const double loss = pass(has_margin, centering);
    if (checks.empty()) checks.push_back(compare("rewards", rewards, get(golden, "rewards").values, kLossLimit));
    checks.push_back(compare(name + " loss", loss, expected.at("loss").get<double>(), kLossLimit));
    auto gradients = model.gradients();
    gradients["score.weight"].assign(d_score.begin(), d_score.end());
    checks.push_back(compare_gradients(name + " gradients", gradients, golden, name + ".grad."));
    const std::vector<FlatParameter> begin = model.take();
    const std::vector<float> begin_score = model.score;
    for (eval::VerifyCheck& c : follow_training(
             name, one.at("training"), expected, [&] { return pass(has_margin, centering); },
             [&] {
               std::vector<FlatParameter> all = model.take();
               all.push_back({true, model.score, d_score});
               return all;
             },
             [&](const std::vector<FlatParameter>& all) {
               model.put(all, 0);
               model.score = all.back().values;
             }))
      checks.push_back(std::move(c));
    model.put(begin, 0);
    model.score = begin_score;
  }
  return checks;
}

}  // namespace sinter::tune

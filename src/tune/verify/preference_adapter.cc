// DPO of an adapter whose reference is the model with it off.
#include <nlohmann/json.hpp>

#include "tune/objectives/preference.h"
#include "tune/verify/model_pass.h"

namespace sinter::tune {

Checks verify_preference_adapter(const std::string& folder, const eval::VerifyOptions& options) {
  const nlohmann::ordered_json one = read_case(folder), &parameters = one.at("parameters");
  const Tensors inputs = read_tensors(folder + "/inputs.safetensors"),
                golden = read_tensors(folder + "/golden.safetensors");
  ModelPass model = ModelPass::open_adapter(path_of(folder, one.at("base_model")), folder + "/adapter", options);
  const TokenRows rows = rows_of(get(inputs, "input_ids"), get(inputs, "attention_mask"));
  const RowValues mask = kept(get(inputs, "completion_mask"), get(inputs, "attention_mask"));
  model.use_adapter(false);
  const RowValues reference = model.logps(rows);
  model.use_adapter(true);
  PairOptions pair;
  pair.loss = parse_pair_loss(parameters.at("loss_type").get<std::string>());
  pair.beta = parameters.value("beta", 0.1);
  pair.label_smoothing = parameters.value("label_smoothing", 0.0);
  const size_t pairs = rows.size() / 2;
  std::vector<double> losses;
  auto pass = [&] {
    const std::vector<AnswerScore> scores = score_answers(model.logps(rows), reference, mask);
    RowValues slopes = mask;
    double loss = 0;
    losses.clear();
    for (size_t i = 0; i < pairs; ++i) {
      const PairTerms terms = pair_loss(pair, scores[i], scores[pairs + i]);
      losses.push_back(terms.loss);
      loss += terms.loss / static_cast<double>(pairs);
      for (double& s : slopes[i]) s *= terms.d_chosen / static_cast<double>(pairs);
      for (double& s : slopes[pairs + i]) s *= terms.d_rejected / static_cast<double>(pairs);
    }
    model.backward(rows, slopes);
    return loss;
  };
  constexpr double kLimit = 1e-4;
  const double loss = pass();
  Checks checks{compare("loss", loss, get(golden, "loss").values[0], kLimit),
                compare("losses", losses, get(golden, "losses").values, kLimit),
                compare_gradients("gradients", model.gradients(), golden, "grad.")};
  for (eval::VerifyCheck& c : follow_training("adamw", one.at("training"), one.at("expected"), model, pass))
    checks.push_back(std::move(c));
  return checks;
}

}  // namespace sinter::tune

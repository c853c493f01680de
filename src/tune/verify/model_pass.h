// A model's log-probabilities and hidden states on rows of tokens, and the gradients of a function of them: what every
// objective's golden answers are checked with.
#pragma once
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "models/open_model.h"
#include "tune/objectives/preference.h"
#include "tune/verify/case_folder.h"

namespace sinter::tune {

using TokenRows = std::vector<std::vector<int32_t>>;
using RowValues = std::vector<std::vector<double>>;  // a value for every token of every row

// A stored tensor on the host.
struct FlatParameter {
  bool decays = false;
  std::vector<float> values, gradient;
};

class ModelPass {
 public:
  ModelPass(const std::string& folder, const eval::VerifyOptions& options);
  // A sequence classifier's trunk and its one row of weights.
  static ModelPass open_classifier(const std::string& folder, const eval::VerifyOptions& options);

  // A model with an adapter beside it: only the adapter's tensors train, and gradients have PEFT's names.
  static ModelPass open_adapter(const std::string& base, const std::string& adapter,
                                const eval::VerifyOptions& options);
  void use_adapter(bool is_on) { model_.store->use_adapters(is_on); }

  // Log-probability of every token given those before it, at a temperature; 0 for a row's first.
  RowValues logps(const TokenRows& rows, double temperature = 1);
  // Last hidden states after the final norm: (C) behind one another for every token of every row.
  RowValues hidden(const TokenRows& rows);
  // Logits of every token, (V) behind one another.
  RowValues logits(const TokenRows& rows);
  // Gradients of sum(d_logps * logps) + sum(d_hidden * hidden), kept in the store. Either may be empty.
  void backward(const TokenRows& rows, const RowValues& d_logps, const RowValues& d_hidden = {},
                double temperature = 1);

  std::map<std::string, std::vector<double>> gradients() const;  // by name in the folder
  std::vector<FlatParameter> take() const;
  void put(const std::vector<FlatParameter>& parameters, size_t first);  // from parameters[first] on
  int64_t width() const { return model_.spec.hidden; }

  std::vector<float> score;  // (C) of a classifier

 private:
  explicit ModelPass(const eval::VerifyOptions& options);
  ops::Context context(autograd::Tape* tape);
  autograd::Parameter& head();

  core::DeviceRuntime& device_;
  const kernels::KernelTable& kernels_;
  models::OpenModel model_;
  bool is_adapter_ = false;
};

// The gradients below `prefix` in the golden file, each as a share of its largest entry.
eval::VerifyCheck compare_gradients(std::string name, const std::map<std::string, std::vector<double>>& found,
                                    const Tensors& golden, const std::string& prefix, double limit = 1e-4);

// Ten steps of AdamW as "training" says, against "train_losses" and "grad_norms" of `expected`. `pass` gives the loss
// and leaves the gradients, `take` and `put` read and write all parameters with theirs.
Checks follow_training(const std::string& name, const nlohmann::ordered_json& training,
                       const nlohmann::ordered_json& expected, const std::function<double()>& pass,
                       const std::function<std::vector<FlatParameter>()>& take,
                       const std::function<void(const std::vector<FlatParameter>&)>& put);
// The same for one model.
Checks follow_training(const std::string& name, const nlohmann::ordered_json& training,
                       const nlohmann::ordered_json& expected, ModelPass& model, const std::function<double()>& pass);

// Of a row's answer in all; `mask` says which tokens are the answer's.
std::vector<AnswerScore> score_answers(const RowValues& logps, const RowValues& reference, const RowValues& mask);
// The values at the rows' real tokens.
RowValues kept(const Numbers& values, const Numbers& mask);
// Rows of a padded batch: the tokens whose mask is 1, in order.
TokenRows rows_of(const Numbers& ids, const Numbers& mask);

}  // namespace sinter::tune

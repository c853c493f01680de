#include "tune/verify/model_pass.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "core/host_batch.h"
#include "models/weights.h"
#include "ops/loss.h"
#include "tune/adapter/peft.h"
#include "tune/run/reward_model.h"

namespace sinter::tune {
namespace {

using core::Tensor;

core::HostBatch batch_of(const TokenRows& rows) {
  core::HostBatch batch;
  for (const auto& row : rows) batch.add_sequence(row);
  batch.set_next_token_targets();
  return batch;
}

// (T, n) floats as rows of n values a token.
RowValues split_rows(const std::vector<float>& flat, const TokenRows& rows, size_t width) {
  RowValues out;
  size_t at = 0;
  for (const auto& row : rows) {
    out.emplace_back(flat.begin() + static_cast<ptrdiff_t>(at),
                     flat.begin() + static_cast<ptrdiff_t>(at + row.size() * width));
    at += row.size() * width;
  }
  return out;
}

std::vector<float> flatten(const RowValues& rows, size_t shift) {
  std::vector<float> out;
  for (const auto& row : rows) {
    for (size_t t = 0; t < row.size(); ++t)
      out.push_back(t + shift < row.size() ? static_cast<float>(row[t + shift]) : 0.0f);
  }
  return out;
}

Tensor scaled(core::Allocator& memory, const Tensor& x, double factor) {
  std::vector<float> values = core::to_host_floats(x);
  for (float& v : values) v = static_cast<float>(v * factor);
  return core::make_tensor<float>(memory, {x.rows(), x.num_elements() / x.rows()}, values);
}

}  // namespace

ModelPass::ModelPass(const eval::VerifyOptions& options)
    : device_(core::runtime(options.device)), kernels_(kernels::kernels_for(options.device)) {}

ModelPass::ModelPass(const std::string& folder, const eval::VerifyOptions& options) : ModelPass(options) {
  model_ = models::open_model(folder, {options.device, core::DType::f32, true});
}

ModelPass ModelPass::open_classifier(const std::string& folder, const eval::VerifyOptions& options) {
  ModelPass pass(options);
  models::OpenModel& model = pass.model_;
  model.spec = read_classifier_spec(folder);
  model.store = std::make_unique<models::ParameterStore>(
      model.spec, models::StoreOptions{.device = options.device, .compute = core::DType::f32, .trains = true});
  const io::TensorFolder tensors(folder);
  std::set<std::string> used{"score.weight"};
  for (models::ParameterStore::Slot& slot : model.store->slots())
    models::load_plain_slot(*model.store, slot, tensors, used);
  model.transformer = std::make_unique<models::Transformer>(model.spec, *model.store);
  const io::TensorEntry& score = tensors.get("score.weight");
  SINTER_CHECK(score.num_elements() == model.spec.hidden, "'{}': score.weight has {} elements, expected one row of {}",
               folder, score.num_elements(), model.spec.hidden);
  pass.score.resize(static_cast<size_t>(score.num_elements()));
  base::convert_elements(score.dtype, score.bytes.data(), core::DType::f32, pass.score.data(), pass.score.size());
  return pass;
}

ModelPass ModelPass::open_adapter(const std::string& base, const std::string& adapter,
                                  const eval::VerifyOptions& options) {
  ModelPass pass(options);
  models::OpenModel& model = pass.model_;
  model.spec = models::load_model_spec(base);
  model.spec.moe.balance_loss = 0;
  const auto table = spec::make_adapter_table(model.spec, resolve_targets(read_peft_config(adapter), model.spec));
  model.store = std::make_unique<models::ParameterStore>(
      spec::whole_table(table),
      models::StoreOptions{.device = options.device, .compute = core::DType::f32, .trains = true});
  models::load_weights(*model.store, model.spec, io::TensorFolder(base));
  load_adapter(*model.store, adapter);
  model.transformer = std::make_unique<models::Transformer>(model.spec, *model.store);
  pass.is_adapter_ = true;
  return pass;
}

ops::Context ModelPass::context(autograd::Tape* tape) {
  return {kernels_, device_.stream(), device_.allocator(), tape};
}

autograd::Parameter& ModelPass::head() {
  autograd::Parameter* own = model_.store->find("head.weight");
  return own ? *own : model_.store->get("embedding.weight");
}

RowValues ModelPass::logps(const TokenRows& rows, double temperature) {
  const core::HostBatch host = batch_of(rows);
  const core::RaggedBatch batch = core::upload(device_.allocator(), host);
  const ops::Context plain = context(nullptr);
  Tensor hidden = model_.transformer->forward(plain, batch, {}).value;
  if (temperature != 1) hidden = scaled(device_.allocator(), hidden, 1 / temperature);
  const Tensor losses(device_.allocator(), {host.num_tokens()}, core::DType::f32);
  ops::linear_cross_entropy(plain, {hidden, nullptr, nullptr}, head(), batch.targets, {}, losses);
  const RowValues shifted = split_rows(core::to_host_floats(losses), rows, 1);
  RowValues out;
  for (const auto& row : shifted) {
    std::vector<double> values(row.size(), 0.0);
    for (size_t t = 1; t < row.size(); ++t) values[t] = -row[t - 1];
    out.push_back(std::move(values));
  }
  return out;
}

RowValues ModelPass::hidden(const TokenRows& rows) {
  const core::RaggedBatch batch = core::upload(device_.allocator(), batch_of(rows));
  const Tensor values = model_.transformer->forward(context(nullptr), batch, {}).value;
  return split_rows(core::to_host_floats(values), rows, static_cast<size_t>(width()));
}

RowValues ModelPass::logits(const TokenRows& rows) {
  const core::RaggedBatch batch = core::upload(device_.allocator(), batch_of(rows));
  const ops::Context plain = context(nullptr);
  const Tensor values = model_.transformer->logits(plain, model_.transformer->forward(plain, batch, {}).value);
  return split_rows(core::to_host_floats(values), rows, static_cast<size_t>(model_.spec.vocab_size));
}

void ModelPass::backward(const TokenRows& rows, const RowValues& d_logps, const RowValues& d_hidden,
                         double temperature) {
  model_.store->begin_step();
  core::Allocator& memory = device_.allocator();
  const core::HostBatch host = batch_of(rows);
  const core::RaggedBatch batch = core::upload(memory, host);
  autograd::Tape tape(autograd::Recompute::none);
  const ops::Context recording = context(&tape);
  const autograd::Variable hidden = model_.transformer->forward(recording, batch, {});
  if (!d_hidden.empty()) {
    const Tensor gradient = core::make_tensor<float>(memory, {host.num_tokens(), width()}, flatten(d_hidden, 0));
    tape.record([recording, hidden, gradient] { ops::accumulate(recording, hidden, gradient); });
  }
  if (!d_logps.empty()) {
    autograd::Variable x = hidden;
    if (temperature != 1) {
      x = recording.make_variable(scaled(memory, hidden.value, 1 / temperature));
      tape.record([this, recording, hidden, x, temperature] {
        const Tensor gradient = ops::take_gradient(x, "temperature");
        ops::accumulate(recording, hidden, scaled(device_.allocator(), gradient, 1 / temperature));
      });
    }
    std::vector<float> weights = flatten(d_logps, 1);  // of token t's prediction, at place t - 1
    for (float& w : weights) w = -w;
    const Tensor losses(memory, {host.num_tokens()}, core::DType::f32);
    ops::linear_cross_entropy(recording, x, head(), batch.targets, core::make_tensor<float>(memory, {1}, {1.0f}),
                              losses, core::make_tensor<float>(memory, {host.num_tokens()}, weights));
  }
  tape.backward();
}

std::map<std::string, std::vector<double>> ModelPass::gradients() const {
  std::map<std::string, std::vector<double>> out;
  for (const models::ParameterStore::Slot& slot : model_.store->slots()) {
    if (!model_.store->is_trained(slot)) continue;
    size_t at = 0;
    for (const models::DiskTensor& part : models::split_parts(slot.info, model_.store->gradient_of(slot))) {
      const std::string name = is_adapter_ ? peft_name(slot.info, slot.info.parts[at++]) : part.name;
      out[name].assign(part.values.begin(), part.values.end());
    }
  }
  return out;
}

std::vector<FlatParameter> ModelPass::take() const {
  std::vector<FlatParameter> out;
  for (const models::ParameterStore::Slot& slot : model_.store->slots())
    if (model_.store->is_trained(slot))
      out.push_back({slot.info.shape.rank() > 1, model_.store->values_of(slot), model_.store->gradient_of(slot)});
  return out;
}

void ModelPass::put(const std::vector<FlatParameter>& parameters, size_t first) {
  for (models::ParameterStore::Slot& slot : model_.store->slots())
    if (model_.store->is_trained(slot)) model_.store->set(slot, parameters[first++].values);
  model_.store->bump_versions();
}

eval::VerifyCheck compare_gradients(std::string name, const std::map<std::string, std::vector<double>>& found,
                                    const Tensors& golden, const std::string& prefix, double limit) {
  eval::VerifyCheck worst{std::move(name), "largest difference", 0, limit, {}};
  size_t count = 0;
  for (const auto& [key, expected] : golden) {
    if (!key.starts_with(prefix)) continue;
    ++count;
    const std::string parameter = key.substr(prefix.size());
    const auto mine = found.find(parameter);
    SINTER_CHECK(mine != found.end(), "'{}' is the gradient of no parameter of the model", key);
    const eval::VerifyCheck one = compare(parameter, mine->second, expected.values, limit, 1e-6);
    if (one.error <= worst.error) continue;
    worst.error = one.error;
    if (!one.holds()) worst.note = parameter + ": " + one.note;
  }
  SINTER_CHECK(count > 0, "there is no gradient '{}...'", prefix);
  worst.kind = fmt::format("of {} tensors, largest", count);
  return worst;
}

Checks follow_training(const std::string& name, const nlohmann::ordered_json& training,
                       const nlohmann::ordered_json& expected, const std::function<double()>& pass,
                       const std::function<std::vector<FlatParameter>()>& take,
                       const std::function<void(const std::vector<FlatParameter>&)>& put) {
  const double lr = training.at("lr"), decay = training.at("weight_decay"), eps = training.at("eps");
  const double b1 = training.at("betas").at(0), b2 = training.at("betas").at(1);
  const auto losses = expected.at("train_losses").get<std::vector<double>>(),
             norms = expected.at("grad_norms").get<std::vector<double>>();
  std::vector<std::vector<double>> first, second;
  std::vector<double> found_losses, found_norms;
  for (size_t step = 1; step <= losses.size(); ++step) {
    found_losses.push_back(pass());
    std::vector<FlatParameter> parameters = take();
    double squares = 0;
    for (const FlatParameter& p : parameters) {
      for (float g : p.gradient) squares += static_cast<double>(g) * g;
    }
    const double norm = std::sqrt(squares);
    found_norms.push_back(norm);
    double scale = 1;
    if (!training.at("clip").is_null()) scale = std::min(1.0, training["clip"].get<double>() / (norm + 1e-6));
    first.resize(parameters.size());
    second.resize(parameters.size());
    const double c1 = 1 - std::pow(b1, step), c2 = 1 - std::pow(b2, step);
    for (size_t i = 0; i < parameters.size(); ++i) {
      FlatParameter& p = parameters[i];
      first[i].resize(p.values.size());
      second[i].resize(p.values.size());
      for (size_t k = 0; k < p.values.size(); ++k) {
        const double g = p.gradient[k] * scale;
        double &m = first[i][k], &v = second[i][k];
        m = b1 * m + (1 - b1) * g;
        v = b2 * v + (1 - b2) * g * g;
        const double kept = p.values[k] * (1 - (p.decays ? lr * decay : 0));
        p.values[k] = static_cast<float>(kept - lr * (m / c1) / (std::sqrt(v / c2) + eps));
      }
    }
    put(parameters);
  }
  return {compare(name + " losses over steps", found_losses, losses, 1e-4),
          compare(name + " gradient norms over steps", found_norms, norms, 1e-3)};
}

Checks follow_training(const std::string& name, const nlohmann::ordered_json& training,
                       const nlohmann::ordered_json& expected, ModelPass& model, const std::function<double()>& pass) {
  const std::vector<FlatParameter> begin = model.take();
  Checks checks = follow_training(
      name, training, expected, pass, [&] { return model.take(); },
      [&](const std::vector<FlatParameter>& parameters) { model.put(parameters, 0); });
  model.put(begin, 0);
  return checks;
}

std::vector<AnswerScore> score_answers(const RowValues& logps, const RowValues& reference, const RowValues& mask) {
  std::vector<AnswerScore> scores(logps.size());
  for (size_t r = 0; r < logps.size(); ++r) {
    for (size_t t = 1; t < logps[r].size(); ++t) {
      scores[r].logp += logps[r][t] * mask[r][t];
      if (!reference.empty()) scores[r].reference += reference[r][t] * mask[r][t];
      scores[r].tokens += mask[r][t] != 0;
    }
  }
  return scores;
}

RowValues kept(const Numbers& values, const Numbers& mask) {
  RowValues out(static_cast<size_t>(mask.rows()));
  for (int64_t r = 0; r < mask.rows(); ++r) {
    for (int64_t c = 0; c < mask.columns(); ++c) {
      if (mask.at(r, c) != 0) out[static_cast<size_t>(r)].push_back(values.at(r, c));
    }
  }
  return out;
}

TokenRows rows_of(const Numbers& ids, const Numbers& mask) {
  SINTER_CHECK(ids.shape == mask.shape, "ids and mask have {} and {} values", ids.values.size(), mask.values.size());
  TokenRows rows(static_cast<size_t>(ids.rows()));
  for (int64_t r = 0; r < ids.rows(); ++r) {
    for (int64_t c = 0; c < ids.columns(); ++c) {
      if (mask.at(r, c) != 0) rows[static_cast<size_t>(r)].push_back(static_cast<int32_t>(ids.at(r, c)));
    }
  }
  return rows;
}

}  // namespace sinter::tune

// Adapters against PEFT: logits with the adapter and merged, every gradient, ten steps of AdamW, the folder written
// back.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "core/host_copy.h"
#include "data/batch.h"
#include "io/safetensors.h"
#include "kernels/table.h"
#include "models/open_model.h"
#include "models/weights.h"
#include "spec/hf_config.h"
#include "train/guard.h"
#include "train/optimizer.h"
#include "train/step.h"
#include "tune/adapter/merge.h"
#include "tune/adapter/peft.h"
#include "tune/run/tune_plan.h"
#include "tune/verify/case_folder.h"

namespace sinter::tune {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using core::Tensor;

constexpr double kLogits = 1e-4, kLoss = 1e-4, kGradient = 1e-4;

class AdapterCase {
 public:
  AdapterCase(const std::string& folder, const eval::VerifyOptions& options)
      : folder_(folder),
        options_(options),
        case_(read_case(folder)),
        is_quantized_(case_.at("kind") == "qlora"),
        base_(is_quantized_ ? folder + "/model-4bit" : path_of(folder, case_.at("base_model"))),
        model_(models::load_model_spec(base_)),
        inputs_(read_tensors(folder + "/inputs.safetensors")),
        golden_(read_tensors(folder + "/golden.safetensors")),
        device_(core::runtime(options.device)),
        kernels_(kernels::kernels_for(options.device)) {
    model_.moe.balance_loss = 0;  // PEFT's runs have none
    const PeftConfig config = read_peft_config(folder + "/adapter");
    if (is_quantized_) apart_ = tensors_apart(base_, model_);
    table_ = spec::make_adapter_table(model_, resolve_targets(config, model_));
    store_ = open(table_, true);
    load_adapter(*store_, folder + "/adapter");
    transformer_ = std::make_unique<models::Transformer>(model_, *store_);
    batch_ = make_batch();
  }

  Checks run() {
    Checks checks;
    const char* adapted = is_quantized_ ? "logits_with_adapter" : "logits";
    checks.push_back(compare("logits with the adapter", logits(*transformer_), get(golden_, adapted).values, kLogits));
    store_->use_adapters(false);
    const std::vector<double> off = logits(*transformer_);
    store_->use_adapters(true);
    if (is_quantized_) {
      checks.push_back(compare("logits without the adapter", off, get(golden_, "logits").values, kLogits));
      check_dequantized(checks);
    } else if (!saves_modules()) {
      models::Transformer plain(model_, *open_base());
      checks.push_back(compare("adapter off = base", off, logits(plain), 0));
    }
    if (!is_quantized_) check_merged(checks);
    check_written(checks);
    check_training(checks);
    return checks;
  }

 private:
  bool saves_modules() const {
    return std::any_of(table_.begin(), table_.end(), [](const spec::ParameterSpec& p) {
      return p.trainable && p.role != spec::ParameterRole::adapter;
    });
  }

  std::unique_ptr<models::ParameterStore> open(const std::vector<spec::ParameterSpec>& table, bool trains) {
    auto store = std::make_unique<models::ParameterStore>(
        spec::whole_table(table), models::StoreOptions{.device = options_.device,
                                                       .compute = options_.compute,
                                                       .trains = trains,
                                                       .apart = trains ? apart_ : std::set<std::string>()});
    load_base(*store, model_, base_);
    return store;
  }

  models::ParameterStore* open_base() {
    plain_ = open(spec::make_parameter_table(model_), false);
    return plain_.get();
  }

  void check_dequantized(Checks& checks) {
    double differing = 0;
    for (const auto& slot : store_->slots()) {
      if (slot.info.role == spec::ParameterRole::adapter) continue;
      for (const models::DiskTensor& part : models::split_parts(slot.info, store_->values_of(slot))) {
        const auto found = golden_.find("dequantized." + part.name);
        if (found == golden_.end()) continue;
        for (size_t i = 0; i < part.values.size(); ++i)
          differing += part.values[i] == static_cast<float>(found->second.values[i]) ? 0 : 1;
      }
    }
    checks.push_back({"dequantized weights", "numbers differing", differing, 0, {}});
  }

  data::MicroBatch make_batch() const {
    const Numbers &ids = get(inputs_, "input_ids"), &labels = get(inputs_, "labels");
    data::MicroBatch batch;
    std::vector<int32_t> row;
    for (int64_t r = 0; r < ids.rows(); ++r) {
      row.clear();
      for (int64_t t = 0; t < ids.columns(); ++t) row.push_back(static_cast<int32_t>(ids.at(r, t)));
      batch.add_sequence(row);
      for (int64_t t = 0; t < ids.columns(); ++t) {
        const double label = t + 1 < ids.columns() ? labels.at(r, t + 1) : -100;
        batch.targets.push_back(label < 0 ? -1 : static_cast<int32_t>(label));
        if (label >= 0) ++batch.num_supervised;
      }
    }
    return batch;
  }

  std::vector<double> logits(const models::Transformer& transformer) {
    const core::RaggedBatch batch = core::upload(device_.allocator(), batch_);
    const ops::Context context{kernels_, device_.stream(), device_.allocator()};
    const Tensor hidden = transformer.forward(context, batch, {}).value;
    const std::vector<float> values = core::to_host_floats(transformer.logits(context, hidden));
    return {values.begin(), values.end()};
  }

  void check_merged(Checks& checks) {
    if (model_.tied_head) return;  // head and table could not stay apart
    std::unique_ptr<models::ParameterStore> merged = open(spec::make_parameter_table(model_), false);
    const std::vector<AdapterTensor> tensors = read_adapter_tensors(folder_ + "/adapter", table_);
    double worst = 0;
    for (auto& slot : merged->slots()) {
      std::vector<float> values = merged->values_of(slot);
      for (const spec::ParameterSpec& info : table_) {
        if (info.name == slot.info.name) merge_into(values, info, tensors);
      }
      merged->set(slot, values);
      for (const models::DiskTensor& part : models::split_parts(slot.info, values)) {
        const auto found = golden_.find("merged." + part.name);
        if (found == golden_.end()) continue;
        const std::vector<double> own(part.values.begin(), part.values.end());
        worst = std::max(worst, compare("", own, found->second.values, 1e-5).error);
      }
    }
    checks.push_back({"merged weights", "largest difference", worst, 1e-5, {}});
    models::Transformer transformer(model_, *merged);
    checks.push_back(compare("merged logits", logits(transformer), get(golden_, "merged_logits").values, kLogits));
  }

  // What is written reads back as it was, bit for bit.
  void check_written(Checks& checks) {
    const std::string written = (fs::temp_directory_path() / fmt::format("sinter-adapter-{}", getpid())).string();
    base::create_folders(written);
    std::vector<Tensor> values;
    for (const auto& slot : store_->slots()) {
      if (spec::is_adapter_tensor(slot.info)) values.push_back(slot.parameter.master);
    }
    PeftConfig config = read_peft_config(folder_ + "/adapter");
    config.adapter = resolve_targets(config, model_);
    write_peft_config(written, config, model_);
    write_adapter_tensors(written, table_, values);
    double differing = read_peft_config(written).adapter == config.adapter ? 0 : 1;
    const auto before = read_adapter_tensors(folder_ + "/adapter", table_),
               after = read_adapter_tensors(written, table_);
    for (size_t i = 0; i < before.size(); ++i) differing += before[i].values == after[i].values ? 0 : 1;
    fs::remove_all(written);
    checks.push_back({"folder written and read", "tensors differing", differing, 0, {}});
  }

  void check_training(Checks& checks) {
    const Json& training = case_.at("training");
    const Json& expected = case_.at("expected");
    spec::Recipe recipe;
    recipe.optimizer.lr = training.at("lr");
    recipe.optimizer.beta1 = training.at("betas")[0];
    recipe.optimizer.beta2 = training.at("betas")[1];
    recipe.optimizer.eps = training.at("eps");
    recipe.optimizer.weight_decay = training.at("weight_decay");
    recipe.optimizer.clip = training.at("clip").is_null() ? 0 : training.at("clip").get<double>();
    train::StepShape shape{.num_tokens = batch_.num_tokens(),
                           .num_sequences = batch_.num_sequences(),
                           .window = get(inputs_, "input_ids").columns(),
                           .compute = options_.compute};
    const parallel::Mesh mesh(*self_);
    train::StepRunner runner(*transformer_, shape,
                             train::plan_step(model_, shape, spec::whole_table(table_), nullptr, apart_), mesh);
    train::DivergenceGuard guard(recipe, options_.device);
    train::Optimizer optimizer(recipe.optimizer, *store_);
    Tensor squares = zeros(1), record = zeros(kernels::kRecordSize);
    std::vector<double> losses, norms;
    const size_t steps = expected.at("train_losses").size();
    for (size_t step = 0; step < steps; ++step) {
      const double loss = runner.run({batch_}, static_cast<int64_t>(step)).loss;
      losses.push_back(loss);
      if (step == 0) check_gradients(checks);
      store_->sum_gradient_squares(kernels_, device_.stream(), squares);
      norms.push_back(std::sqrt(static_cast<double>(core::to_host<float>(squares)[0])));
      guard.decide(core::make_tensor<float>(device_.allocator(), {1}, {static_cast<float>(loss)}), 1, squares, record);
      optimizer.update(guard.control(), 1.0, static_cast<int64_t>(step));
    }
    checks.push_back(compare("loss", losses[0], expected.at("loss").get<double>(), kLoss));
    checks.push_back(
        compare("losses of the steps", losses, expected.at("train_losses").get<std::vector<double>>(), kLoss));
    checks.push_back(
        compare("gradient norms of the steps", norms, expected.at("grad_norms").get<std::vector<double>>(), 1e-3));
    check_final(checks, recipe.optimizer.lr);
  }

  Tensor zeros(int64_t n) {
    Tensor t(device_.allocator(), {n}, core::DType::f32);
    kernels_.fill(device_.stream(), {t, 0.0f});
    return t;
  }

  void check_gradients(Checks& checks) {
    eval::VerifyCheck worst{"gradients", "largest difference", 0, kGradient, {}};
    size_t seen = 0, all = 0;
    for (const auto& [name, numbers] : golden_) all += name.starts_with("grad.") ? 1 : 0;
    for (const auto& slot : store_->slots()) {
      if (!store_->is_trained(slot)) continue;
      const std::vector<models::DiskTensor> parts = models::split_parts(slot.info, store_->gradient_of(slot));
      for (size_t i = 0; i < parts.size(); ++i) {
        const std::string name = peft_name(slot.info, slot.info.parts[i]);
        const std::vector<double> own(parts[i].values.begin(), parts[i].values.end());
        const eval::VerifyCheck check = compare(name, own, get(golden_, "grad." + name).values, kGradient, 1e-6);
        ++seen;
        if (!(check.error <= worst.error)) worst.error = check.error, worst.note = name + ": " + check.note;
      }
    }
    if (worst.holds()) worst.note.clear();
    checks.push_back(worst);
    checks.push_back({"gradients that PEFT has too", "missing", static_cast<double>(all - seen), 0, {}});
  }

  // Adam turns noise in gradients near zero into steps: single numbers may be off by part of the learning rate.
  void check_final(Checks& checks, double lr) {
    double worst = 0;
    for (const AdapterTensor& tensor : read_adapter_tensors(folder_ + "/adapter_final", table_)) {
      for (const auto& slot : store_->slots()) {
        if (slot.info.name != tensor.info.name) continue;
        const std::vector<float> own = store_->values_of(slot);
        for (size_t i = 0; i < own.size(); ++i)
          worst = std::max(worst, std::abs(static_cast<double>(own[i]) - static_cast<double>(tensor.values[i])) / lr);
      }
    }
    checks.push_back({"adapter after the steps", "learning rates", worst, 0.5, {}});
  }

  const std::string folder_;
  const eval::VerifyOptions options_;
  const Json case_;
  const bool is_quantized_;  // the base is kept in 4 bits
  const std::string base_;
  std::set<std::string> apart_;
  spec::ModelSpec model_;
  const Tensors inputs_, golden_;
  core::DeviceRuntime& device_;
  const kernels::KernelTable& kernels_;
  std::unique_ptr<comm::Communicator> self_ = comm::make_self();
  std::vector<spec::ParameterSpec> table_;
  std::unique_ptr<models::ParameterStore> store_, plain_;
  std::unique_ptr<models::Transformer> transformer_;
  data::MicroBatch batch_;
};

}  // namespace

Checks verify_adapter(const std::string& folder, const eval::VerifyOptions& options) {
  return AdapterCase(folder, options).run();
}

}  // namespace sinter::tune

#include "eval/verify.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "base/error.h"
#include "base/json.h"
#include "core/host_batch.h"
#include "eval/routing.h"
#include "models/open_model.h"
#include "models/weights.h"
#include "train/guard.h"
#include "train/optimizer.h"

namespace sinter::eval {
namespace {

using core::DType;
using core::Tensor;

struct Limits {
  double logits, loss, gradient, step;
  double gap;  // RouterChoice::gap up to which rounding may decide
  bool is_16_bit;
};

// Gaps: rounding to bf16 moves those of the golden models by 2 % (root mean square; half of it is the weights'), fp16
// by an eighth of that. Ten steps in fp32 move them by up to 5e-5 against float64, since AdamW makes whole steps out of
// gradients that are hardly more than rounding. The limits leave room for the worst of some hundred choices.
Limits limits_for(const VerifyOptions& options) {
  if (options.compute == DType::bf16) return {5e-2, 1e-3, 5e-3, 2e-2, 0.1, true};
  if (options.compute == DType::f16) return {5e-2, 1e-3, 5e-3, 2e-2, 0.1 / 8, true};
  if (options.device.kind == core::DeviceKind::cuda) return {1e-4, 1e-4, 1e-4, 1e-4, 1e-4, false};
  return {1e-5, 1e-4, 1e-4, 1e-4, 1e-4, false};
}

// A gradient this small beside all of them is the rounding of zeros: that of a router of one expert with its
// probability scaled to 1, or of an expert no token chose.
constexpr double kNoGradient = 1e-7;
constexpr size_t kMaxTurned = 3;  // ties of one model's training that are tried the other way

double norm_of(const std::vector<float>& values) {
  double squares = 0;
  for (float v : values) squares += static_cast<double>(v) * v;
  return std::sqrt(squares);
}

double relative_error(const std::vector<float>& found, const std::vector<float>& expected) {
  double difference = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    double d = static_cast<double>(found[i]) - expected[i];
    difference += d * d;
  }
  return std::sqrt(difference) / std::max(norm_of(expected), 1e-30);
}

double one_minus_cosine(const std::vector<float>& found, const std::vector<float>& expected) {
  double dot = 0, a = 0, b = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    dot += static_cast<double>(found[i]) * expected[i];
    a += static_cast<double>(found[i]) * found[i];
    b += static_cast<double>(expected[i]) * expected[i];
  }
  return 1.0 - dot / std::max(std::sqrt(a * b), 1e-30);
}

std::vector<float> floats_of(const io::TensorEntry& entry) {
  std::vector<float> values(static_cast<size_t>(entry.num_elements()));
  base::convert_elements(entry.dtype, entry.bytes.data(), DType::f32, values.data(), values.size());
  return values;
}

// (B, T) i64 on disk as rows of token ids.
std::vector<std::vector<int32_t>> token_rows(const io::TensorEntry& entry, const std::string& path, int64_t vocab) {
  SINTER_CHECK(entry.dtype == DType::i64 && entry.shape.size() == 2, "'{}': '{}' should be i64 with two axes", path,
               entry.name);
  std::vector<int64_t> flat(static_cast<size_t>(entry.num_elements()));
  std::memcpy(flat.data(), entry.bytes.data(), entry.bytes.size());
  const auto columns = static_cast<size_t>(entry.shape[1]);
  std::vector<std::vector<int32_t>> rows(static_cast<size_t>(entry.shape[0]));
  for (size_t i = 0; i < flat.size(); ++i) {
    SINTER_CHECK(flat[i] >= 0 && flat[i] < vocab, "'{}': '{}' holds token {} outside the vocabulary of {}", path,
                 entry.name, flat[i], vocab);
    rows[i / columns].push_back(static_cast<int32_t>(flat[i]));
  }
  return rows;
}

// A choice in one of several training steps.
struct StepChoice {
  size_t step = 0;
  RouterChoice choice;

  bool is_at(size_t other_step, int64_t layer, int64_t token) const {
    return step == other_step && choice.layer == layer && choice.token == token;
  }
};

std::string golden_path(const std::string& folder) {
  const std::string path = folder + "/golden.safetensors";
  SINTER_CHECK(std::filesystem::is_directory(folder),
               "there is no folder '{}'; expected one with a model and its golden.safetensors", folder);
  SINTER_CHECK(std::filesystem::exists(path),
               "'{}' has no golden.safetensors: `verify` compares a model with answers that another program gave and "
               "that lie beside it",
               folder);
  return path;
}

class Verifier {
 public:
  Verifier(const std::string& folder, const VerifyOptions& options)
      : limits_(limits_for(options)),
        folder_(folder),
        options_(options),
        path_(golden_path(folder)),
        golden_(path_),
        model_(models::open_model(folder, {options.device, options.compute, true})),
        device_(core::runtime(options.device)),
        kernels_(kernels::kernels_for(options.device)) {
    double squares = 0;
    for (const io::TensorEntry& entry : golden_.entries()) {
      if (entry.name.rfind("grad.", 0) == 0) squares += std::pow(norm_of(floats_of(entry)), 2);
    }
    gradient_norm_ = std::sqrt(squares);
    if (std::filesystem::exists(folder + "/golden.json")) answers_ = base::load_json(folder + "/golden.json");
    rows_ = token_rows(golden("input_ids"), path_, model_.spec.vocab_size);
    SINTER_CHECK(!rows_.empty() && rows_[0].size() > 8, "'{}': 'input_ids' needs rows of more than 8 tokens", path_);
    SINTER_CHECK(!answers_.is_null() || model_.spec.bos_token >= 0, "'{}': no golden.json and no BOS token", path_);
  }

  std::vector<VerifyCheck> run() {
    checks_ = measure();
    if (limits_.is_16_bit && model_.spec.moe.num_experts > 0) checks_ = follow_fp32(checks_);
    check_greedy();
    if (answers_.contains("train_losses")) check_training();
    return std::move(checks_);
  }

 private:
  const io::TensorEntry& golden(const std::string& name) const {
    const io::TensorEntry* entry = golden_.find(name);
    SINTER_CHECK(entry, "'{}': tensor '{}' is missing; see tests/golden/generate.py for the form", path_, name);
    return *entry;
  }

  core::HostBatch host_batch() const {
    core::HostBatch batch;
    for (const auto& row : rows_) batch.add_sequence(row);
    batch.set_next_token_targets();
    return batch;
  }

  ops::Context context(autograd::Tape* tape) { return {kernels_, device_.stream(), device_.allocator(), tape}; }

  std::vector<float> logits_of(const core::HostBatch& host) {
    core::RaggedBatch batch = core::upload(device_.allocator(), host);
    ops::Context plain = context(nullptr);
    Tensor hidden = model_.transformer->forward(plain, batch, {}).value;
    return core::to_host_floats(model_.transformer->logits(plain, hidden));
  }

  // Logits, loss and every gradient that the golden answers hold, in this order.
  std::vector<VerifyCheck> measure() {
    std::vector<VerifyCheck> checks = {{"logits", "relative", logits_error(), limits_.logits}};
    const std::vector<float> losses = floats_of(golden("loss"));
    SINTER_CHECK(losses.size() == 1, "'{}': 'loss' has {} elements; expected one", path_, losses.size());
    double expected = losses[0], found = loss_and_gradients();
    std::set<std::string> unused;
    for (const io::TensorEntry& entry : golden_.entries()) {
      if (entry.name.starts_with("grad.")) unused.insert(entry.name);
    }
    if (model_.spec.tied_head) unused.erase("grad.lm_head.weight");
    checks.push_back({"loss", "relative", std::abs(found - expected) / std::abs(expected), limits_.loss});
    for (const models::ParameterStore::Slot& slot : model_.store->slots()) {
      for (const models::DiskTensor& part : models::split_parts(slot.info, model_.store->gradient_of(slot))) {
        const io::TensorEntry* entry = golden_.find("grad." + part.name);
        if (!entry) continue;
        unused.erase(entry->name);
        const std::vector<float> answer = floats_of(*entry);
        SINTER_CHECK(answer.size() == part.values.size(), "'{}': '{}' has {} elements; the model's has {}", path_,
                     entry->name, answer.size(), part.values.size());
        checks.push_back(gradient_check(part, answer));
      }
    }
    SINTER_CHECK(unused.empty(), "'{}': '{}' is the gradient of no parameter of the model ({} such)", path_,
                 *unused.begin(), unused.size());
    return checks;
  }

  double logits_error() {
    std::vector<float> expected = floats_of(golden("logits")), found = logits_of(host_batch());
    // Some folders hold the logits of the last positions only.
    const auto V = static_cast<size_t>(model_.spec.vocab_size), T = rows_[0].size();
    const size_t kept = expected.size() / V / rows_.size();
    SINTER_CHECK(kept >= 1 && kept <= T && kept * V * rows_.size() == expected.size(),
                 "'{}': 'logits' has {} elements; expected {} rows of up to {} positions of {}", path_, expected.size(),
                 rows_.size(), T, V);
    std::vector<float> tail;
    for (size_t r = 0; r < rows_.size(); ++r) {
      auto begin = found.begin() + static_cast<std::ptrdiff_t>((r * T + T - kept) * V);
      tail.insert(tail.end(), begin, begin + static_cast<std::ptrdiff_t>(kept * V));
    }
    return relative_error(tail, expected);
  }

  VerifyCheck gradient_check(const models::DiskTensor& part, const std::vector<float>& expected) const {
    VerifyCheck check{"grad " + part.name, limits_.is_16_bit ? "1 - cosine" : "relative", 0, limits_.gradient};
    if (norm_of(expected) < kNoGradient * gradient_norm_) {
      check.kind = "of all gradients";
      check.error = relative_error(part.values, expected) * norm_of(expected) / gradient_norm_;
    } else {
      check.error = limits_.is_16_bit ? one_minus_cosine(part.values, expected) : relative_error(part.values, expected);
    }
    return check;
  }

  // The whole sequence again for every new token: no cache is involved, so this is the model's own answer.
  void check_greedy() {
    if (!golden_.find("greedy")) return;
    auto expected = token_rows(golden("greedy"), path_, model_.spec.vocab_size);
    SINTER_CHECK(expected.size() == rows_.size(), "'{}': 'greedy' has {} rows; expected {}, as 'input_ids' has", path_,
                 expected.size(), rows_.size());
    double differing = 0;
    for (size_t r = 0; r < rows_.size(); ++r) {
      // generate.py continues the first 8 tokens; folders without its golden.json continue the BOS token.
      std::vector<int32_t> sequence(rows_[r].begin(), rows_[r].begin() + 8);
      if (answers_.is_null()) sequence = {static_cast<int32_t>(model_.spec.bos_token)};
      for (int32_t token : expected[r]) {
        core::HostBatch batch;
        batch.add_sequence(sequence);
        std::vector<float> logits = logits_of(batch);
        auto last = logits.end() - model_.spec.vocab_size;
        auto best = static_cast<int32_t>(std::max_element(last, logits.end()) - last);
        differing += best != token;
        sequence.push_back(token);  // the reference's token, so that one slip is counted once
      }
    }
    // Rounding to 16 bits may flip near ties; half the tokens differing means something is wrong.
    double total_tokens = static_cast<double>(expected.size() * expected[0].size());
    checks_.push_back({"greedy", "tokens differing", differing, limits_.is_16_bit ? total_tokens / 2 : 0});
  }

  // Mean loss of the batch; leaves the gradients in the store.
  double loss_and_gradients() {
    model_.store->begin_step();
    core::HostBatch host = host_batch();
    core::RaggedBatch batch = core::upload(device_.allocator(), host);
    auto count =
        static_cast<double>(std::count_if(host.targets.begin(), host.targets.end(), [](int t) { return t >= 0; }));
    models::LossPlaces places;
    places.scale = core::make_tensor<float>(device_.allocator(), {1}, {static_cast<float>(1.0 / count)});
    places.losses = Tensor(device_.allocator(), {batch.num_tokens}, DType::f32);
    autograd::Tape tape(autograd::Recompute::none);
    model_.transformer->loss(context(&tape), batch, {}, places);
    tape.backward();
    double sum = 0;
    for (float loss : core::to_host_floats(places.losses)) sum += loss;
    return sum / count;
  }

  // The router logits of every layer in fp32, (T, E) each.
  std::map<int64_t, std::vector<float>> fp32_routing() {
    models::OpenModel exact = models::open_model(folder_, {options_.device, DType::f32, false});
    std::map<int64_t, std::vector<float>> logits;
    exact.transformer->on_router_logits = [&](int64_t layer, const Tensor& rows) {
      logits[layer] = core::to_host<float>(rows);
    };
    exact.transformer->forward(context(nullptr), core::upload(device_.allocator(), host_batch()), {});
    return logits;
  }

  // What measure() gives with every token at the experts it has in fp32, and how far those chosen otherwise are from
  // them; `own` is what it gave by the model's own choices.
  std::vector<VerifyCheck> follow_fp32(const std::vector<VerifyCheck>& own) {
    const std::map<int64_t, std::vector<float>> reference = fp32_routing();
    const int64_t k = model_.spec.moe.experts_per_token;
    std::map<std::tuple<int64_t, int64_t, int32_t>, RouterChoice> differing;  // the same in every forward: kept once
    model_.transformer->on_router_logits = [&](int64_t layer, const Tensor& logits) {
      const std::vector<float>& exact = reference.at(layer);
      edit_rows(logits, [&](int64_t token, std::span<float> row) {
        auto exact_row = std::span(exact).subspan(static_cast<size_t>(token) * row.size(), row.size());
        for (const RouterChoice& pair : follow_choice(row, exact_row, k)) differing[{layer, token, pair.chosen}] = pair;
      });
    };
    std::vector<VerifyCheck> checks = measure();
    model_.transformer->on_router_logits = nullptr;
    VerifyCheck routing{"routing", "gap", 0, limits_.gap, {}};
    for (const auto& [place, pair] : differing) routing.error = std::max(routing.error, pair.gap);
    if (!differing.empty()) {
      auto by_error = [](const VerifyCheck& a, const VerifyCheck& b) { return a.error < b.error; };
      const VerifyCheck& worst = *std::max_element(own.begin() + 2, own.end(), by_error);
      const auto& [place, first] = *differing.begin();
      const size_t num_choices = reference.size() * rows_.size() * rows_[0].size() * static_cast<size_t>(k);
      routing.note = fmt::format(
          "{} of {} choices differ from fp32 and are taken from there (first: layer {}, token {}, expert {} instead of "
          "{}); by its own choices logits {:.2e}, loss {:.2e}, lowest cosine {:.4f} ({})",
          differing.size(), num_choices, std::get<0>(place), std::get<1>(place), first.chosen, first.other,
          own[0].error, own[1].error, 1 - worst.error, worst.name);
    }
    checks.insert(checks.begin() + 2, routing);
    return checks;
  }

  // The trainer's step by the gradients in the store.
  void update_weights(train::DivergenceGuard& guard, train::Optimizer& optimizer, double loss) {
    Tensor squares = zeros(1), record = zeros(kernels::kRecordSize);
    model_.store->sum_gradient_squares(kernels_, device_.stream(), squares);
    guard.decide(core::make_tensor<float>(device_.allocator(), {1}, {static_cast<float>(loss)}), 1, squares, record);
    optimizer.update(guard.control(), 1.0);
  }

  Tensor zeros(int64_t n) {
    Tensor t(device_.allocator(), {n}, DType::f32);
    kernels_.fill(device_.stream(), {t, 0.0f});
    return t;
  }

  // The steps from the folder's weights on the same batch, checked; steps count from 1. The tokens of `turned` take the
  // other of their two experts; choices too close to call (`turned` aside) go to `close`.
  std::vector<VerifyCheck> train(const std::vector<StepChoice>& turned, std::vector<StepChoice>& close) {
    model_ = models::open_model(folder_, {options_.device, options_.compute, true});
    spec::Recipe recipe;  // what the goldens were made with
    recipe.optimizer = {.kind = spec::OptimizerKind::adamw,
                        .lr = 1e-3,
                        .beta1 = 0.9,
                        .beta2 = 0.95,
                        .eps = 1e-8,
                        .weight_decay = 0.1,
                        .clip = 1.0};
    train::DivergenceGuard guard(recipe, options_.device);
    train::Optimizer optimizer(recipe.optimizer, *model_.store);
    std::vector<VerifyCheck> checks;
    size_t step = 0;
    model_.transformer->on_router_logits = [&](int64_t layer, const Tensor& logits) {
      edit_rows(logits, [&](int64_t token, std::span<float> row) {
        RouterChoice choice = closest_choice(row, model_.spec.moe.experts_per_token);
        choice.layer = layer;
        choice.token = token;
        auto is_here = [&](const StepChoice& c) { return c.is_at(step, layer, token); };
        if (std::any_of(turned.begin(), turned.end(), is_here)) {
          std::swap(row[choice.chosen], row[choice.other]);
        } else if (choice.gap <= limits_.gap) {
          close.push_back({step, choice});
        }
      });
    };
    for (const auto& loss : answers_["train_losses"]) {
      ++step;
      double found = loss_and_gradients(), expected = loss.get<double>();
      checks.push_back(
          {"step " + std::to_string(step), "relative", std::abs(found - expected) / std::abs(expected), limits_.step});
      update_weights(guard, optimizer, found);
    }
    model_.transformer->on_router_logits = nullptr;
    return checks;
  }

  void check_training() {
    std::vector<StepChoice> turned, close;
    const std::vector<VerifyCheck> own = train(turned, close);
    std::vector<VerifyCheck> checks = own;
    for (size_t tries = 0; !limits_.is_16_bit && tries < kMaxTurned; ++tries) {
      auto failed = std::find_if(checks.begin(), checks.end(), [](const VerifyCheck& c) { return !c.holds(); });
      if (failed == checks.end()) break;
      const auto failed_step = static_cast<size_t>(failed - checks.begin()) + 1;
      std::erase_if(close, [&](const StepChoice& c) { return c.step > failed_step; });
      if (close.empty()) break;
      auto by_gap = [](const StepChoice& a, const StepChoice& b) { return a.choice.gap < b.choice.gap; };
      turned.push_back(*std::min_element(close.begin(), close.end(), by_gap));
      close.clear();
      checks = train(turned, close);
    }
    const bool all_hold = std::all_of(checks.begin(), checks.end(), [](const VerifyCheck& c) { return c.holds(); });
    if (!all_hold) {
      checks = own;
      turned.clear();
    }
    for (const auto& [step, tie] : turned) {
      checks_.push_back(
          {"routing, step " + std::to_string(step), "gap", tie.gap, limits_.gap,
           fmt::format("layer {}, token {}: experts {} and {} tie within rounding; the losses are those of "
                       "taking expert {}, as the golden answers do",
                       tie.layer, tie.token, tie.chosen, tie.other, tie.other)});
    }
    checks_.insert(checks_.end(), checks.begin(), checks.end());
  }

  const Limits limits_;
  const std::string folder_;
  const VerifyOptions options_;
  const std::string path_;
  io::SafetensorsFile golden_;
  models::OpenModel model_;
  core::DeviceRuntime& device_;
  const kernels::KernelTable& kernels_;
  nlohmann::json answers_;
  std::vector<std::vector<int32_t>> rows_;
  double gradient_norm_ = 0;  // of all golden gradients
  std::vector<VerifyCheck> checks_;
};

}  // namespace

std::vector<VerifyCheck> verify_model(const std::string& folder, const VerifyOptions& options) {
  return Verifier(folder, options).run();
}

}  // namespace sinter::eval

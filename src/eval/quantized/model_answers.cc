#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "core/host_batch.h"
#include "engine/prompt.h"
#include "eval/quantized/golden_tensors.h"
#include "eval/quantized/quantized_golden.h"
#include "eval/score/log_softmax.h"
#include "kernels/choices.h"
#include "models/open_model.h"
#include "tokenizer/tokenizer.h"

namespace sinter::eval {
namespace {

// Logits of random models have a standard deviation near 0.6, of trained ones 5 to 7.
constexpr double kTrainedDeviation = 2.0;
constexpr double kRandomLimit = 2e-5, kTrainedLimit = 2e-4, kPerplexityLimit = 1e-4, kRoundedPerplexityLimit = 2e-3;

std::vector<int32_t> ids_of(const io::TensorEntry& entry, const std::string& path) {
  SINTER_CHECK(entry.dtype == base::DType::i32, "'{}': '{}' is {}; expected i32", path, entry.name,
               base::dtype_name(entry.dtype));
  std::vector<int32_t> ids(static_cast<size_t>(entry.num_elements()));
  std::memcpy(ids.data(), entry.bytes.data(), entry.bytes.size());
  return ids;
}

std::vector<float> logits_of(const models::OpenModel& model, const std::vector<std::vector<int32_t>>& sequences) {
  core::HostBatch host;
  for (const auto& sequence : sequences) host.add_sequence(sequence);
  const models::StoreOptions& store = model.store->options();
  core::DeviceRuntime& device = core::runtime(store.device);
  const core::RaggedBatch batch = core::upload(device.allocator(), host);
  ops::Context context{kernels::kernels_for(store.device), device.stream(), device.allocator(), nullptr};
  return core::to_host_floats(model.transformer->logits(context, model.transformer->forward(context, batch, {}).value));
}

double deviation_of(const std::vector<float>& values) {
  double sum = 0, squares = 0;
  for (float v : values) sum += v, squares += static_cast<double>(v) * v;
  const auto n = static_cast<double>(values.size());
  return std::sqrt(std::max(0.0, squares / n - sum / n * (sum / n)));
}

// The model's own tokenizer, or that of the base beside its folder; null: there is none.
std::unique_ptr<tokenizer::Tokenizer> find_tokenizer(const std::string& model) {
  namespace fs = std::filesystem;
  const std::string base = (fs::path(model).parent_path() / "llama-q").string();
  const std::string& found = !fs::is_directory(model) || fs::exists(model + "/tokenizer.json") ? model : base;
  if (fs::is_directory(found) && !fs::exists(found + "/tokenizer.json")) return nullptr;
  return std::make_unique<tokenizer::Tokenizer>(tokenizer::Tokenizer::load(found));
}

// The rule of the fixtures: windows of BOS + 255 tokens, all 255 predicted, the remainder dropped.
double perplexity_of(const models::OpenModel& model, const std::vector<int32_t>& tokens, int32_t bos) {
  constexpr size_t kPredicted = 255;
  const auto V = static_cast<size_t>(model.spec.vocab_size);
  double loss = 0;
  size_t count = 0;
  for (size_t begin = 0; begin + kPredicted <= tokens.size(); begin += kPredicted) {
    std::vector<int32_t> window{bos};
    window.insert(window.end(), tokens.begin() + static_cast<std::ptrdiff_t>(begin),
                  tokens.begin() + static_cast<std::ptrdiff_t>(begin + kPredicted));
    const std::vector<float> logits = logits_of(model, {window});
    for (size_t i = 0; i < kPredicted; ++i) {
      const float* row = logits.data() + i * V;
      loss += read_logits(row, V).log_sum - static_cast<double>(row[static_cast<size_t>(window[i + 1])]);
    }
    count += kPredicted;
  }
  return std::exp(loss / static_cast<double>(count));
}

}  // namespace

void verify_model_answers(const ModelAnswers& answers, const io::SafetensorsFile& golden, const VerifyOptions& options,
                          std::vector<VerifyCheck>& checks) {
  const models::OpenModel model = models::open_model(answers.model, {options.device, base::DType::f32, false});
  const bool rounds = !answers.rounding.empty();
  const kernels::IntegerProducts products(rounds);
  auto add = [&](const std::string& name, const char* kind, double error, double limit, std::string note = {}) {
    checks.push_back({answers.case_name + ": " + name, kind, error, limit, std::move(note)});
  };
  double limit = kRandomLimit;
  for (int k = 0; golden.find(fmt::format("prompt{}", k)); ++k) {
    const std::vector<int32_t> prompt = ids_of(*golden.find(fmt::format("prompt{}", k)), golden.path());
    const io::TensorEntry* entry = golden.find(answers.logits + std::to_string(k));
    if (!entry) continue;
    const std::vector<float> expected = floats_of(*entry), found = logits_of(model, {prompt});
    SINTER_CHECK(found.size() == expected.size(), "'{}': '{}' has {} elements; the model gives {}", golden.path(),
                 entry->name, expected.size(), found.size());
    double worst = 0;
    for (size_t i = 0; i < found.size(); ++i) {
      const double difference = std::abs(static_cast<double>(found[i]) - expected[i]);
      worst = difference <= worst ? worst : difference;  // keeps NaN
    }
    if (deviation_of(expected) > kTrainedDeviation) limit = kTrainedLimit;
    const bool has_own = rounds && static_cast<size_t>(k) < answers.rounding.size();
    add(fmt::format("logits of prompt {}", k), "largest difference", worst,
        has_own ? answers.rounding[static_cast<size_t>(k)] : limit);
  }
  const auto tokenizer = find_tokenizer(answers.model);
  const io::TensorEntry *greedy = golden.find(answers.greedy), *greedy_prompt = golden.find(answers.greedy_prompt);
  if (greedy && !rounds && (greedy_prompt || tokenizer)) {
    const std::vector<int32_t> expected = ids_of(*greedy, golden.path());
    const std::vector<float> margins = floats_of(*golden.find(answers.greedy_margin));
    std::vector<int32_t> sequence = greedy_prompt ? ids_of(*greedy_prompt, golden.path())
                                                  : tokenizer->encode("Once upon a time", {.add_special = true});
    const auto V = static_cast<size_t>(model.spec.vocab_size);
    double differing = 0;
    for (size_t i = 0; i < expected.size() && static_cast<double>(margins[i]) > 2 * limit; ++i) {
      const std::vector<float> logits = logits_of(model, {sequence});
      auto last = logits.end() - static_cast<std::ptrdiff_t>(V);
      differing += std::max_element(last, logits.end()) - last != expected[i];
      sequence.push_back(expected[i]);
    }
    add("greedy", "tokens differing", differing, 0);
  }
  if (answers.perplexity > 0 && tokenizer && std::filesystem::exists(answers.text)) {
    const std::vector<int32_t> tokens = tokenizer->encode(base::read_file(answers.text));
    const double found = perplexity_of(model, tokens, tokenizer->special_ids().bos);
    add("perplexity", "relative", std::abs(found / answers.perplexity - 1),
        rounds ? kRoundedPerplexityLimit : kPerplexityLimit,
        fmt::format("{:.4f}, expected {:.4f}", found, answers.perplexity));
  }
}

}  // namespace sinter::eval

#include "bench/engine_parts.h"

#include <algorithm>
#include <memory>

#include "base/rng.h"
#include "bench/serve_load.h"
#include "engine/engine.h"
#include "engine/fake_model.h"
#include "engine/grammar/json_schema.h"
#include "engine/grammar/matcher.h"

namespace sinter::bench {
namespace {

// Tells the time that is the model's own.
class TimedFake : public engine::FakeModel {
 public:
  TimedFake() : FakeModel(16, 0, true) {}
  void forward(const engine::StepBatch& batch) override {
    const double begin = now_seconds();
    FakeModel::forward(batch);
    model_seconds += now_seconds() - begin;
  }
  Chosen chosen() override {
    const double begin = now_seconds();
    const Chosen result = FakeModel::chosen();
    model_seconds += now_seconds() - begin;
    return result;
  }
  double model_seconds = 0;
};

struct HostTimes {
  std::vector<double> schedule_us, step_us;  // step: all but the model
};

HostTimes host_times(int64_t running, double seconds) {
  engine::EngineOptions options{
      .kv_tokens = running * 4096, .step_tokens = 4096, .max_running = running, .max_waiting = 2 * running};
  auto owned = std::make_unique<TimedFake>();
  const TimedFake& model = *owned;
  engine::Engine engine(std::move(owned), options);
  for (int64_t i = 0; i < running; ++i) {
    engine::Request request{.prompt = std::vector<int32_t>(200, 1), .max_new_tokens = 3000};
    request.sampling.seed = static_cast<uint64_t>(i);
    request.on_output = [](engine::Output&&) {};
    engine.submit(std::move(request));
  }
  while (engine.stats().running < running || engine.stats().output_tokens < 2 * running) engine.step();
  HostTimes times;
  const double start = now_seconds();
  while (times.step_us.size() < 100 || now_seconds() - start < seconds) {
    const double before = engine.stats().schedule_seconds, model_before = model.model_seconds, begin = now_seconds();
    if (!engine.step()) break;
    times.step_us.push_back(1e6 * (now_seconds() - begin - (model.model_seconds - model_before)));
    times.schedule_us.push_back(1e6 * (engine.stats().schedule_seconds - before));
  }
  return times;
}

// All bytes, then words of two to ten letters as real vocabularies have them: most begin with a space or nothing.
engine::grammar::TokenBytes made_up_vocabulary(int64_t size) {
  std::vector<std::string> bytes;
  for (int b = 0; b < 256; ++b) bytes.emplace_back(1, static_cast<char>(b));
  const base::CounterRng rng{1, 1};
  uint64_t drawn = 0;
  while (static_cast<int64_t>(bytes.size()) < size - 1) {
    std::string word = rng.bits(drawn++) % 2 ? " " : "";
    for (uint32_t left = 2 + rng.bits(drawn++) % 9; left > 0; --left) {
      const uint32_t kind = rng.bits(drawn++) % 40;
      const uint32_t draw = rng.bits(drawn++);
      word += kind == 0   ? static_cast<char>('0' + draw % 10)
              : kind == 1 ? "\"{}[]:,.-_\\/"[draw % 12]
                          : static_cast<char>('a' + draw % 26);
    }
    bytes.push_back(std::move(word));
  }
  bytes.emplace_back("<end>");
  return engine::grammar::make_vocabulary(std::move(bytes), {static_cast<int32_t>(size) - 1});
}

// Times of mask() over one random output after another.
std::vector<double> mask_microseconds(const std::shared_ptr<engine::grammar::CompiledGrammar>& grammar, uint64_t seed) {
  std::vector<double> times;
  engine::grammar::GrammarMask mask(grammar, false);
  const engine::grammar::TokenBytes& vocabulary = grammar->vocabulary();
  for (uint64_t step = 0; step < 200; ++step) {
    const double start = now_seconds();
    const std::span<const uint32_t> bits = mask.mask();
    times.push_back(1e6 * (now_seconds() - start));
    std::vector<int32_t> allowed;
    for (int32_t t = 0; t < vocabulary.size; ++t) {
      if (bits[static_cast<size_t>(t) / 32] >> (t % 32) & 1) allowed.push_back(t);
    }
    if (allowed.empty()) break;
    int32_t token = allowed[base::mix_bits(seed, step) % allowed.size()];
    for (char closing : std::string("\"}]")) {  // outputs come to an end
      if (step > 60 && (bits[static_cast<size_t>(closing) / 32] >> (closing % 32) & 1)) token = closing;
    }
    const auto& ends = vocabulary.end_tokens;
    if (std::find(ends.begin(), ends.end(), token) != ends.end()) break;
    mask.accept(token);
    if (mask.is_complete()) break;
  }
  return times;
}

struct Schema {
  const char *name, *text;
};
constexpr Schema kSchemas[] = {
    {"any JSON", "true"},
    {"person",
     R"({"type":"object","properties":{"name":{"type":"string","maxLength":40},"age":{"type":"integer","minimum":0,"maximum":150},
        "email":{"type":"string","format":"email"},"tags":{"type":"array","items":{"type":"string"},"maxItems":5}},
        "required":["name","age"],"additionalProperties":false})"},
    {"tree",
     R"({"$defs":{"node":{"type":"object","properties":{"value":{"type":"number"},"kind":{"enum":["leaf","inner","root"]},
        "children":{"type":"array","items":{"$ref":"#/$defs/node"}}},"required":["value","kind"]}},"$ref":"#/$defs/node"})"},
    {"date and id",
     R"({"type":"object","properties":{"when":{"type":"string","format":"date-time"},"id":{"type":"string","pattern":"^[A-Z]{3}-[0-9]{4,8}$"}},
        "required":["when","id"]})"},
};

}  // namespace

Report bench_schedule(const Options& options) {
  Report report{.name = "schedule",
                .title =
                    "The host's part of one step, microseconds (fake model, all sequences decode): scheduling, and "
                    "all with tokens taken up and handed out"};
  report.columns = {{"running", "running", 0},      {"p50_us", "schedule p50", 1}, {"p99_us", "p99", 1},
                    {"step_p50_us", "step p50", 1}, {"step_p99_us", "p99", 1},     {"steps", "steps", 0}};
  for (int64_t running : {64, 256, 1024}) {
    const HostTimes times = host_times(running, options.case_seconds);
    report.rows.push_back({static_cast<double>(running), percentile(times.schedule_us, 0.5),
                           percentile(times.schedule_us, 0.99), percentile(times.step_us, 0.5),
                           percentile(times.step_us, 0.99), static_cast<double>(times.step_us.size())});
  }
  return report;
}

Report bench_masks(const Options& options) {
  std::optional<tokenizer::Tokenizer> tokenizer;
  engine::grammar::TokenBytes vocabulary;
  if (options.tokenizer.empty()) {
    vocabulary = made_up_vocabulary(128 * 1024);
  } else {
    tokenizer = tokenizer::Tokenizer::load(options.tokenizer);
    const int32_t eos = tokenizer->special_ids().eos;
    vocabulary =
        engine::grammar::make_vocabulary(*tokenizer, eos >= 0 ? std::vector<int32_t>{eos} : std::vector<int32_t>{});
  }
  Report report{.name = "masks",
                .title = fmt::format("Masks over {} tokens, microseconds per token of the output", vocabulary.size)};
  report.columns = {{"schema", "schema"},       {"first_p50_us", "first output p50", 1},
                    {"first_p99_us", "p99", 1}, {"p50_us", "further ones p50", 1},
                    {"p99_us", "p99", 1},       {"mean_us", "mean", 1},
                    {"tokens", "tokens", 0}};
  for (const Schema& schema : kSchemas) {
    const auto grammar = std::make_shared<engine::grammar::CompiledGrammar>(
        engine::grammar::compile_schema(schema.text, {}), vocabulary);
    const std::vector<double> first = mask_microseconds(grammar, 1);
    std::vector<double> later;
    for (uint64_t seed = 2; seed < 20; ++seed) {
      const std::vector<double> more = mask_microseconds(grammar, seed);
      later.insert(later.end(), more.begin(), more.end());
    }
    double sum = 0;
    for (double t : later) sum += t;
    report.rows.push_back({schema.name, percentile(first, 0.5), percentile(first, 0.99), percentile(later, 0.5),
                           percentile(later, 0.99), sum / static_cast<double>(std::max<size_t>(1, later.size())),
                           static_cast<double>(later.size())});
  }
  return report;
}

}  // namespace sinter::bench

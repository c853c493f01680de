#include "bench/decode.h"

#include <algorithm>
#include <memory>

#include "base/rng.h"
#include "bench/engine_run.h"
#include "bench/gpu_ceilings.h"
#include "bench/random_weights.h"
#include "engine/batch.h"
#include "engine/engine.h"
#include "engine/transformer_runner.h"

namespace sinter::bench {
namespace {

using base::WeightFormat;

const core::Device kDevice{core::DeviceKind::cuda, 0};

struct DecodeCase {
  const char* model;
  int64_t batch, prompt, new_tokens;
  PackedFormat weights{};
  bool has_fp8_cache = false;
};

std::string format_of(const DecodeCase& c) {
  if (c.weights.format == WeightFormat::plain) return "bf16";
  const std::string name(base::name_of(c.weights.format));
  return c.weights.group > 0 ? fmt::format("{} g{}", name, c.weights.group) : name;
}

// Tells for how long the host certainly waited for the GPU.
class WatchedRunner : public engine::TransformerRunner {
 public:
  using TransformerRunner::TransformerRunner;
  Chosen chosen() override {
    const double begin = now_seconds();
    const Chosen result = TransformerRunner::chosen();
    waited_seconds += now_seconds() - begin;
    return result;
  }
  double waited_seconds = 0;
};

struct Watched {
  Watched(const models::Transformer& transformer, const engine::EngineOptions& options) {
    auto model = std::make_unique<WatchedRunner>(
        transformer, engine::RunnerOptions{.kv_format = options.kv_format, .kv_plain_layers = options.kv_plain_layers});
    runner = model.get();
    engine = std::make_unique<engine::Engine>(std::move(model), options);
  }
  WatchedRunner* runner;
  std::unique_ptr<engine::Engine> engine;
};

struct Times : EngineTimes {
  double waited_seconds = 0;
};

Times run_once(Watched& watched, const DecodeCase& c, uint64_t seed) {
  double waited = 0;
  const EngineRun run{.batch = c.batch, .prompt = c.prompt, .new_tokens = c.new_tokens, .seed = seed};
  Times times{run_requests(*watched.engine, run, [&] { waited = watched.runner->waited_seconds; })};
  times.waited_seconds = watched.runner->waited_seconds - waited;
  return times;
}

engine::EngineOptions engine_options(int64_t sequences, int64_t tokens_each) {
  engine::EngineOptions options;
  options.kv_tokens = sequences * (tokens_each + 32);
  options.max_running = sequences;
  options.step_tokens = 8192;
  options.max_waiting_tokens = int64_t{1} << 30;
  return options;
}

constexpr PackedFormat kFp8{WeightFormat::fp8_e4m3}, kQ8{WeightFormat::q8_0}, kQ4{WeightFormat::q4_k},
    kInt4{WeightFormat::int4, 128};

// Cases of one model and format stand together: its weights are made once.
constexpr DecodeCase kCases[] = {{"7B", 1, 128, 256},
                                 {"7B", 64, 128, 128},
                                 {"7B", 1, 128, 256, kFp8},
                                 {"7B", 1, 128, 256, {WeightFormat::fp8_e4m3, 128}},
                                 {"7B", 1, 128, 256, kQ8},
                                 {"7B", 8, 128, 256, kQ8},
                                 {"7B", 1, 128, 256, {WeightFormat::q4_0}},
                                 {"7B", 1, 128, 256, kQ4},
                                 {"7B", 8, 128, 256, kQ4},
                                 {"7B", 1, 128, 256, {WeightFormat::q6_k}},
                                 {"7B", 1, 128, 256, kInt4},
                                 {"7B", 8, 128, 256, kInt4},
                                 {"7B", 64, 128, 128, kInt4},
                                 {"7B", 1, 128, 256, {WeightFormat::nf4}},
                                 {"7B", 1, 128, 256, {WeightFormat::mxfp4}},
                                 {"8B", 1, 512, 256},
                                 {"8B", 8, 512, 256},
                                 {"8B", 32, 512, 256},
                                 {"8B", 128, 512, 256},
                                 {"8B", 64, 4096, 64},
                                 {"8B", 64, 4096, 64, {}, true},
                                 {"8B", 1, 32768, 64},
                                 {"8B", 1, 32768, 64, {}, true},
                                 {"16x1B", 1, 512, 128},
                                 {"16x1B", 32, 512, 128}};

struct PrefillCase {
  int64_t prompt, cached;
};
constexpr PrefillCase kPrefillCases[] = {{512, 0}, {2048, 0}, {8192, 0}, {8192, 4096}, {32768, 0}};

bool is_asked_for(const Options& options, const std::string& name) {
  return options.only.empty() || name.find(options.only) != std::string::npos;
}

}  // namespace

Report bench_decode(const Options& options) {
  Report report{"decode",
                "generation with random weights on " + core::runtime(kDevice).description() +
                    "; idle: at most, between steps of decoding",
                {{"model", "model"},
                 {"weights", "weights"},
                 {"cache", "cache"},
                 {"batch", "batch", 0},
                 {"prompt", "prompt", 0},
                 {"prefill", "prompt tok/s", 0},
                 {"decode", "decode tok/s", 1},
                 {"step", "ms a step", 3},
                 {"rate", "read TB/s", 2},
                 {"share", "of copy rate %", 1},
                 {"idle", "GPU idle %", 1}},
                {}};
  double copy_bytes = 0;
  std::string loaded;
  std::unique_ptr<RandomModel> model;
  for (const DecodeCase& c : kCases) {
    const std::string kind = fmt::format("{} {}", c.model, format_of(c)), cache = c.has_fp8_cache ? "fp8" : "bf16";
    if (!is_asked_for(options, fmt::format("{} cache {} b{} {}", kind, cache, c.batch, c.prompt))) continue;
    if (copy_bytes == 0) copy_bytes = measure_ceilings(kDevice).copy_bytes;
    if (loaded != kind) {
      model.reset();
      model = std::make_unique<RandomModel>(c.model, c.weights);
      loaded = kind;
    }
    engine::EngineOptions o = engine_options(c.batch, 2 * (c.prompt + c.new_tokens));
    if (c.has_fp8_cache) o.kv_format = core::DType::f8e4m3;
    Watched watched(*model->transformer, o);
    // The first run measures kernels and captures graphs. Where prompts are long it has few of them.
    const bool is_long = c.batch * c.prompt > 65536;
    run_once(watched, c, 1);
    Times t = run_once(watched, c, is_long ? 1 : 2);  // long prompts come from the cache
    const double steps = static_cast<double>(std::max<int64_t>(1, t.decode_steps));
    const double context = static_cast<double>(c.prompt) + static_cast<double>(c.new_tokens) / 2;
    const double kv = model->kv_bytes_per_token() / (c.has_fp8_cache ? 2 : 1);
    const double bytes = model->weight_bytes() + static_cast<double>(c.batch) * context * kv;
    const double rate = bytes * steps / t.decode_seconds;
    const bool is_sparse = model->spec.moe.num_experts > 0;  // reads some of the experts
    report.rows.push_back({c.model, format_of(c), cache, static_cast<double>(c.batch), static_cast<double>(c.prompt),
                           is_long ? Cell{} : Cell{static_cast<double>(c.batch * c.prompt) / t.prefill_seconds},
                           static_cast<double>(t.decode_tokens) / t.decode_seconds, 1e3 * t.decode_seconds / steps,
                           is_sparse ? Cell{} : Cell{rate / 1e12}, is_sparse ? Cell{} : Cell{100 * rate / copy_bytes},
                           100 * (1 - t.waited_seconds / t.decode_seconds)});
    std::fputs((report.to_text() + "\n").c_str(), stderr);
  }
  return report;
}

Report bench_prefill(const Options& options) {
  Report report{"prefill",
                "prompts of an 8B model with random bf16 weights; FLOPs: products and causal attention",
                {{"prompt", "prompt", 0},
                 {"cached", "cached", 0},
                 {"ms", "ms", 2},
                 {"rate", "tok/s", 0},
                 {"tflops", "TFLOP/s", 1},
                 {"share", "of product rate %", 1}},
                {}};
  double product_flops = 0;
  std::unique_ptr<RandomModel> model;
  uint64_t seed = 1;
  for (const PrefillCase& c : kPrefillCases) {
    if (!is_asked_for(options, fmt::format("prefill {} cached {}", c.prompt, c.cached))) continue;
    if (!model) product_flops = measure_ceilings(kDevice).matmul_flops, model = std::make_unique<RandomModel>("8B");
    Watched watched(*model->transformer, engine_options(2, 2 * c.prompt + 64));
    auto seconds_of = [&](const std::vector<int32_t>& prompt) {
      engine::Request request;
      request.prompt = prompt, request.max_new_tokens = 1, request.sampling.temperature = 0;
      const double begin = now_seconds();
      watched.engine->submit(std::move(request));
      while (watched.engine->has_work()) watched.engine->step();
      watched.engine->take_outputs();
      return now_seconds() - begin;
    };
    double best = 1e300;
    for (int turn = 0; turn < 4; ++turn) {  // the first one chooses algorithms
      const std::vector<int32_t> prompt = random_prompt(c.prompt, model->spec.vocab_size, ++seed);
      if (c.cached > 0) seconds_of({prompt.begin(), prompt.begin() + c.cached + 1});
      const double taken = seconds_of(prompt);
      if (turn > 0) best = std::min(best, taken);
    }
    const auto tokens = static_cast<double>(c.prompt - c.cached), before = static_cast<double>(c.cached);
    const double pairs = tokens * before + tokens * tokens / 2;
    const double flops = model->flops_per_token() * tokens +
                         4.0 * static_cast<double>(model->spec.num_layers * model->spec.q_width()) * pairs;
    report.rows.push_back({static_cast<double>(c.prompt), before, 1e3 * best, tokens / best, flops / best / 1e12,
                           100 * flops / best / product_flops});
  }
  return report;
}

namespace {

struct ScoreCase {
  const char* name;
  int64_t groups, questions, choices;  // questions of a group share their first tokens
  int64_t shared_tokens, own_tokens, choice_tokens;
};

// About as long as these tasks' texts are.
constexpr ScoreCase kScoreCases[] = {{"HellaSwag, 0-shot", 1, 500, 4, 0, 85, 28},
                                     {"MMLU, 5-shot", 8, 40, 4, 640, 110, 1}};

std::vector<engine::ScoreRequest> score_requests(const ScoreCase& c, int64_t vocab) {
  std::vector<engine::ScoreRequest> requests;
  uint64_t seed = 70000;
  for (int64_t g = 0; g < c.groups; ++g) {
    const std::vector<int32_t> shared = random_prompt(c.shared_tokens, vocab, ++seed);
    for (int64_t q = 0; q < c.questions; ++q) {
      std::vector<int32_t> context = shared;
      for (int32_t token : random_prompt(c.own_tokens, vocab, ++seed)) context.push_back(token);
      for (int64_t choice = 0; choice < c.choices; ++choice)
        requests.push_back({.context = context, .continuation = random_prompt(c.choice_tokens, vocab, ++seed)});
    }
  }
  return requests;
}

}  // namespace

Report bench_score(const Options& options) {
  Report report{"gpu_score",
                "log-likelihoods of choices by 8B with random bf16 weights; all tokens: as if nothing were shared",
                {{"task", "task"},
                 {"requests", "requests", 0},
                 {"seconds", "seconds", 2},
                 {"all", "all tok/s", 0},
                 {"computed", "computed tok/s", 0},
                 {"reuse", "all / computed", 2}},
                {}};
  std::unique_ptr<RandomModel> model;
  for (const ScoreCase& c : kScoreCases) {
    if (!is_asked_for(options, fmt::format("gpu_score {}", c.name))) continue;
    if (!model) model = std::make_unique<RandomModel>("8B");
    const std::vector<engine::ScoreRequest> requests = score_requests(c, model->spec.vocab_size);
    double best = 1e300, computed = 0, all = 0;
    for (int turn = 0; turn < 2; ++turn) {  // each with a cache of its own
      engine::EngineOptions o = engine_options(256, 1024);
      engine::Engine engine(*model->transformer, o);
      const double begin = now_seconds();
      engine::score(engine, requests);
      best = std::min(best, now_seconds() - begin);
      const engine::EngineStats stats = engine.stats();
      computed = static_cast<double>(stats.prompt_tokens + stats.recomputed_tokens);
    }
    for (const engine::ScoreRequest& r : requests) all += static_cast<double>(r.context.size() + r.continuation.size());
    report.rows.push_back(
        {c.name, static_cast<double>(requests.size()), best, all / best, computed / best, all / computed});
  }
  return report;
}

Report bench_serve(const Options& options) {
  Report report{"gpu_serve",
                "256 requests at once of 32 to 1,024 prompt tokens and 256 new ones, 8B, random weights",
                {{"weights", "weights"},
                 {"round", "round", 0},
                 {"output", "output tok/s", 0},
                 {"total", "total tok/s", 0},
                 {"seconds", "seconds", 2}},
                {}};
  for (const PackedFormat& weights : {PackedFormat{}, kFp8}) {
    const DecodeCase named{"8B", 1, 1, 1, weights};
    if (!is_asked_for(options, "gpu_serve " + format_of(named))) continue;
    const RandomModel model("8B", weights);
    constexpr int64_t kRequests = 256, kNew = 256, kLongest = 1024;
    engine::EngineOptions o = engine_options(kRequests, kLongest + kNew);
    o.prefix_cache = false;
    engine::Engine engine(*model.transformer, o);
    for (int round = 0; round < 3; ++round) {
      const base::CounterRng rng{29, static_cast<uint64_t>(round)};
      int64_t prompt_tokens = 0, tokens = 0;
      std::vector<engine::Request> requests(kRequests);
      for (size_t i = 0; i < requests.size(); ++i) {
        const int64_t length = 32 + rng.bits(i) % (kLongest - 31);
        prompt_tokens += length;
        requests[i].prompt = random_prompt(length, model.spec.vocab_size, static_cast<uint64_t>(round) * 1000 + i);
        requests[i].max_new_tokens = kNew;
        requests[i].sampling.temperature = 0;
      }
      const double begin = now_seconds();
      for (engine::Request& request : requests) engine.submit(std::move(request));
      while (engine.has_work()) {
        engine.step();
        for (const engine::Output& out : engine.take_outputs()) tokens += static_cast<int64_t>(out.tokens.size());
      }
      const double seconds = now_seconds() - begin;
      report.rows.push_back({format_of(named), static_cast<double>(round), static_cast<double>(tokens) / seconds,
                             static_cast<double>(tokens + prompt_tokens) / seconds, seconds});
    }
  }
  return report;
}

}  // namespace sinter::bench

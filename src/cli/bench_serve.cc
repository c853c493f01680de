#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "bench/serve_load.h"
#include "cli/command.h"
#include "cli/generation_flags.h"
#include "cli/verbs.h"
#include "engine/engine_loop.h"
#include "io/http_client.h"

namespace sinter::cli {
namespace {

struct Flags {
  std::string target, input, name, api_key_file;
  GenerationFlags generation;
  engine::EngineOptions engine;
  bench::LoadOptions load{.most_retry_seconds = 1};
  int64_t requests = 64, prompt_tokens = 128, output_tokens = 128, vocab = 0;
  double rate = 0, most_first_token_ms = 1000, most_token_ms = 100;
  uint64_t seed = 1;
  bool as_json = false;
};

bool is_url(const std::string& target) { return target.find("://") != std::string::npos; }

std::vector<bench::LoadRequest> make_requests(const Flags& flags, int64_t vocab) {
  if (!flags.input.empty()) return bench::read_requests(flags.input, flags.output_tokens);
  return bench::random_requests(flags.requests, flags.prompt_tokens, flags.output_tokens, vocab, flags.rate,
                                flags.seed);
}

void print_result(const Flags& flags, const bench::LoadResult& result) {
  const bench::Report rates = bench::rates_report(result, flags.load), times = bench::latency_report(result);
  if (flags.as_json) {
    const nlohmann::json all{{rates.name, rates.to_json()[0]}, {times.name, times.to_json()}};
    std::printf("%s\n", all.dump(2).c_str());
  } else {
    std::printf("%s\n%s\ngood: the first token within %g ms, each further one within %g ms on average\n",
                rates.to_text().c_str(), times.to_text().c_str(), flags.most_first_token_ms, flags.most_token_ms);
  }
  for (const bench::LoadOutcome& o : result.outcomes) {
    if (o.status == 200 || o.status == 429) continue;
    base::fail("a request failed with {}: {}", o.status == 0 ? "no answer" : fmt::format("status {}", o.status),
               o.error);
  }
}

nlohmann::json ask_server(io::HttpClient& client, const std::string& path) {
  const io::HttpAnswer reply = client.get(path);
  SINTER_CHECK(reply.status == 200, "{} answers {}: {}", path, reply.status, reply.body.substr(0, 300));
  return nlohmann::json::parse(reply.body, nullptr, false);
}

void measure_url(Flags flags) {
  std::string key;
  if (const char* given = std::getenv("SINTER_API_KEY")) key = given;
  if (!flags.api_key_file.empty()) {
    key = base::read_file(flags.api_key_file);
    key.resize(key.find_first_of("\r\n") == std::string::npos ? key.size() : key.find_first_of("\r\n"));
  }
  io::HttpClient client(flags.target, io::with_api_key(key));
  if (flags.name.empty()) {
    const nlohmann::json models = ask_server(client, "/v1/models");
    SINTER_CHECK(models.is_object() && models.contains("data") && !models["data"].empty(),
                 "{} names no model; give --name", flags.target);
    flags.name = models["data"][0].value("id", "");
  }
  if (flags.vocab == 0 && flags.input.empty()) {
    const nlohmann::json info = ask_server(client, "/tokenizer_info");
    flags.vocab = info.is_object() ? info.value("vocab_size", int64_t{0}) : 0;
    SINTER_CHECK(flags.vocab > 0, "{} does not tell its vocabulary's size; give --vocab", flags.target);
  }
  const auto requests = make_requests(flags, flags.vocab);
  print_result(flags, bench::run_load(bench::url_target(flags.target, flags.name, key), requests, flags.load));
}

void measure_engine(Flags flags) {
  flags.target = newest_model(flags.target);
  auto tokenizer = load_tokenizer(flags.generation, flags.target);
  models::OpenModel model = open_for_generation(flags.generation, flags.target);
  flags.engine.tokenizer = &tokenizer;
  flags.engine.vocab_limit = tokenizer.vocab_size();
  flags.engine.keeps_choices = true;
  auto requests = make_requests(flags, flags.vocab > 0 ? flags.vocab : tokenizer.vocab_size());
  for (bench::LoadRequest& r : requests) {
    if (r.ids.empty()) r.ids = engine::encode_prompt(tokenizer, r.text, model.spec);
  }
  engine::Engine engine(*model.transformer, flags.engine);
  for (size_t i = 0; i < requests.size(); ++i)
    engine.check({.prompt = requests[i].ids, .max_new_tokens = requests[i].max_tokens},
                 fmt::format("request {}", i + 1));
  engine::EngineLoop loop(engine);
  const bench::LoadResult result = bench::run_load(bench::engine_target(engine, loop), requests, flags.load);
  SINTER_CHECK(loop.error().empty(), "the engine has stopped: {}", loop.error());
  print_result(flags, result);
  if (flags.as_json) return;
  const engine::EngineStats s = engine.stats();
  const double steps = static_cast<double>(std::max<int64_t>(1, s.num_steps));
  std::printf("a step: %.3f ms in the model, %.3f ms choosing, %.3f ms scheduling; %s steps, %s preemptions\n",
              1e3 * s.model_seconds / steps, 1e3 * s.sample_seconds / steps, 1e3 * s.schedule_seconds / steps,
              base::format_grouped(s.num_steps).c_str(), base::format_grouped(s.preemptions).c_str());
}

void run_bench_serve(Flags flags) {
  if (!flags.input.empty() && flags.rate > 0)
    base::fail_usage("--rate makes arrivals of its own; with --input give \"at\" in the lines");
  flags.load.most_first_token_seconds = flags.most_first_token_ms / 1000;
  flags.load.most_token_seconds = flags.most_token_ms / 1000;
  if (is_url(flags.target)) return measure_url(std::move(flags));
  measure_engine(std::move(flags));
}

}  // namespace

void add_bench_serve(Command bench) {
  auto flags = std::make_shared<Flags>();
  const Command verb = bench.add_verb("serve", "load on an engine or a server, and what its users see of it");
  verb.option("TARGET", &flags->target, "model folder (an engine in this process) or http://HOST:PORT").required();
  verb.option("--clients", &flags->load.clients,
              "clients that ask at once; with --rate or given times the most under way")
      .in_range(1, 4096)
      .shows_default();
  const Option rate = verb.option("--rate", &flags->rate, "requests a second, arriving at random (Poisson)").positive();
  const Option input = verb.option("--input", &flags->input,
                                   "JSON lines: \"prompt\" as text or ids, \"max_tokens\", and \"at\" in seconds");
  input.excludes(rate);
  verb.option("--requests", &flags->requests, "how many").in_range(1, 100000000).shows_default();
  verb.option("--seconds", &flags->load.seconds, "ask round and round for so long instead").positive();
  verb.option("--prompt-tokens", &flags->prompt_tokens, "of random prompts").in_range(1, 10000000).shows_default();
  verb.option("--output-tokens", &flags->output_tokens, "of each answer").in_range(1, 10000000).shows_default();
  verb.option("--good-first-ms", &flags->most_first_token_ms, "goodput: the first token comes within this")
      .positive()
      .shows_default();
  verb.option("--good-token-ms", &flags->most_token_ms, "goodput: each further one on average within this")
      .positive()
      .shows_default();
  verb.option("--seed", &flags->seed, "of prompts and arrivals").shows_default();
  verb.option("--vocab", &flags->vocab, "ids of random prompts are below this; default: the tokenizer's")
      .in_range(1, 10000000);
  verb.option("--name", &flags->name, "for a server: the model; default: its first");
  verb.option("--api-key-file", &flags->api_key_file, "for a server: its key (or SINTER_API_KEY)").existing_file();
  verb.option("--max-running", &flags->engine.max_running, "for an engine: sequences at once")
      .in_range(1, 4096)
      .shows_default();
  verb.option("--step-tokens", &flags->engine.step_tokens, "for an engine: most tokens of a step")
      .in_range(1, 1000000)
      .shows_default();
  verb.option("--cache-tokens", &flags->engine.kv_tokens, "for an engine: room in the cache; 0 chooses")
      .at_least(0)
      .shows_default();
  verb.option("--device", &flags->generation.device, "cpu or cuda").shows_default();
  verb.option("--precision", &flags->generation.precision, "fp32, bf16 or fp16").shows_default();
  verb.option("--threads", &flags->generation.threads, "CPU threads for the model; default: all").in_range(1, 1024);
  verb.flag("--json", &flags->as_json, "print one JSON object instead of tables");
  verb.footer(
      "Examples:\n"
      "  sinter bench serve models/stories15M --clients 16\n"
      "  sinter bench serve http://127.0.0.1:8000 --rate 5 --requests 300 --output-tokens 64\n"
      "  sinter bench serve http://127.0.0.1:8000 --input prompts.jsonl --clients 4 --json");
  verb.on_run([flags] { run_bench_serve(*flags); });
}

}  // namespace sinter::cli

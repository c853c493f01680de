#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench/model_speed.h"
#include "cli/command.h"
#include "cli/generation_flags.h"
#include "cli/verbs.h"
#include "core/kv_format.h"

namespace sinter::cli {
namespace {

struct Flags {
  std::string model;
  GenerationFlags generation;
  bench::ModelSpeedOptions speed;
  std::vector<double> batches{1, 8};
  bool as_json = false;
};

}  // namespace

void add_bench_model(Command bench) {
  auto flags = std::make_shared<Flags>();
  const Command verb = bench.add_verb("model", "prompts and decoding of a model of one's own on the CPU: tok/s");
  verb.option("MODEL", &flags->model, "model folder or .gguf file").required();
  verb.option("--prompt-tokens", &flags->speed.prompt, "of the prompt that is timed")
      .in_range(1, 100000)
      .shows_default();
  verb.option("--output-tokens", &flags->speed.new_tokens, "decoded behind a prompt of one token")
      .in_range(1, 100000)
      .shows_default();
  verb.option("--batches", &flags->batches, "sequences decoded at once")
      .delimiter(',')
      .in_range(1, 4096)
      .shows_default();
  verb.option("--rounds", &flags->speed.rounds, "of each; the median counts").in_range(1, 1000).shows_default();
  verb.option("--precision", &flags->generation.precision, "fp32, bf16 or fp16").shows_default();
  add_kv_cache_flag(verb, flags->generation.kv_cache);
  verb.flag("--exact", &flags->generation.is_exact, "do not round activations to 8 bits");
  verb.option("--threads", &flags->generation.threads, "CPU threads (or SINTER_THREADS); default: all")
      .in_range(1, 1024);
  verb.flag("--json", &flags->as_json, "print as JSON");
  verb.footer(
      "Examples:\n"
      "  sinter bench model my-model.q4_k_m.gguf --threads 2\n"
      "  sinter bench model my-model --batches 1,4,16 --json");
  verb.on_run([flags] {
    const models::OpenModel model = open_for_generation(flags->generation, newest_model(flags->model));
    flags->speed.batches.assign(flags->batches.begin(), flags->batches.end());
    flags->speed.kv_format = core::parse_kv_format(flags->generation.kv_cache);
    const bench::Report report = bench::bench_model(model, flags->speed);
    std::printf("%s\n", flags->as_json ? report.to_json().dump(2).c_str() : report.to_text().c_str());
  });
}

}  // namespace sinter::cli

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "bench/ceilings.h"
#include "bench/comm.h"
#include "bench/decode.h"
#include "bench/engine_parts.h"
#include "bench/gpu_ceilings.h"
#include "bench/gpu_kernels.h"
#include "bench/gpu_load.h"
#include "bench/gpu_train_step.h"
#include "bench/matmul.h"
#include "bench/pipeline.h"
#include "bench/tokenizer.h"
#include "bench/train_step.h"
#include "bench/tune_step.h"
#include "cli/command.h"
#include "cli/plan/verbs.h"
#include "cli/verbs.h"
#include "comm/launch.h"
#include "core/device.h"
#include "kernels/table.h"
#include "plan/hardware.h"

namespace sinter::cli {
namespace {

struct Benchmark {
  const char* name;
  const char* help;
  bench::Report (*run)(const bench::Options&);
  bool needs_gpu = false, needs_ranks = false;
};

// In the order they run: the machine's ceilings first, the GPU's before its kernels and steps.
constexpr Benchmark kBenchmarks[] = {
    {"ceilings", "what the machine can do: GFLOP/s on registers, memory read GB/s", bench::bench_ceilings},
    {"matmul", "matrix products of GPT-2's training step, beside a peer library", bench::bench_matmul},
    {"decode_matmul", "matrix products of few rows with a packed weight", bench::bench_decode_matmul},
    {"train_step", "an optimizer step of GPT-2 124M, and where its time goes", bench::bench_train_step},
    {"tokenizer", "splitting, encoding, decoding and training, MB/s", bench::bench_tokenizer},
    {"schedule", "the engine's scheduling of a step, microseconds", bench::bench_schedule},
    {"masks", "masks of structured output over 128k tokens, microseconds", bench::bench_masks},
    {"gpu_ceilings", "what a GPU can do: product TFLOP/s, copy TB/s", bench::bench_gpu_ceilings, true},
    {"gpu_kernels", "every kernel of GPT-2's and Llama's training steps on a GPU, TFLOP/s or TB/s",
     bench::bench_gpu_kernels, true},
    {"gpu_train_step", "optimizer steps of GPT-2 124M (also a small batch), 1.5B and Llama 1B on a GPU",
     bench::bench_gpu_train_step, true},
    {"gpu_tune_step", "steps of LoRA and QLoRA of 8B, and of QLoRA of 70B, on a GPU: tok/s, memory",
     bench::bench_gpu_tune_step, true},
    {"decode",
     "generation on a GPU with random weights of 7B and 8B, plain, fp8 and quantized: tok/s, share of the "
     "copy rate",
     bench::bench_decode, true},
    {"prefill", "prompts on a GPU, 8B with random weights: share of the product rate", bench::bench_prefill, true},
    {"gpu_score", "choices scored as evaluations do on a GPU, 8B with random weights: tok/s, tokens reused",
     bench::bench_score, true},
    {"gpu_serve", "256 requests at once on a GPU, 8B with random weights: output tok/s", bench::bench_serve, true},
    {"gpu_load", "reading 7B of bf16 weights from a folder to a GPU: share of the copy rate from host memory",
     bench::bench_gpu_load, true},
    {"comm", "collectives between the ranks of mpirun: GB/s by size, latency and bandwidth fitted", bench::bench_comm,
     false, true},
    {"pipeline", "the bubble of every pipeline schedule between the ranks of mpirun, beside theory and the simulator",
     bench::bench_pipeline, false, true},
};

// Other programs' work only ever makes figures worse: say so rather than print them without a word.
void warn_when_busy() {
  double load = 0;
  if (::getloadavg(&load, 1) == 1 && load > 0.5) {
    base::log_warning("the machine is busy (load average {:.1f}): these figures will be lower than its own", load);
  }
}

// The links between ranks of this machine, for the planner's device that `plan --measure` saved.
void save_links(const bench::Report& report) {
  const std::string path = plan::user_hardware_path();
  plan::DeviceSpec device;
  try {
    device = plan::load_hardware(path).device(plan::kMeasuredName);
  } catch (const base::UsageError&) {
    base::fail("--save adds to the device that `sinter plan --measure` saves in {}: measure first", path);
  }
  const bench::Links links = bench::links_of(report, comm::launch().ranks);
  device.link = "ranks of one machine";
  device.link_bandwidth = links.bandwidth;
  device.pair_bandwidth = links.pair_bandwidth;
  device.link_latency = links.latency;
  save_device(device, path);
  std::printf("Saved in %s: rings at %.2f GB/s, %.1f us a step; %.2f GB/s between two ranks\n\n", path.c_str(),
              links.bandwidth / 1e9, links.latency * 1e6, links.pair_bandwidth / 1e9);
}

void run_benchmarks(const std::vector<std::string>& names, const bench::Options& options, bool is_json) {
  if (comm::launch().rank == 0) warn_when_busy();
  nlohmann::json all = nlohmann::json::object();
  std::string without_rows;
  bool has_picked = false;
  for (const Benchmark& benchmark : kBenchmarks) {
    if (!names.empty() && std::find(names.begin(), names.end(), benchmark.name) == names.end()) continue;
    if (benchmark.needs_gpu && names.empty() && !core::cuda_runtime(0)) continue;  // not asked for by name
    if (benchmark.needs_ranks && names.empty() && comm::launch().ranks == 1) continue;
    SINTER_CHECK(!benchmark.needs_gpu || core::cuda_runtime(0), "{} needs a GPU: {}", benchmark.name,
                 core::why_no_cuda(0));
    bench::Report report = benchmark.run(options);
    if (benchmark.needs_ranks && comm::launch().rank != 0) continue;  // the first rank speaks
    if (benchmark.needs_gpu && report.rows.empty()) {                 // what --only names may be another's
      without_rows += (without_rows.empty() ? "" : ", ") + report.name;
      continue;
    }
    if (options.saves_links && report.name == "comm") save_links(report);
    has_picked = has_picked || benchmark.needs_gpu;
    if (is_json) {
      all[report.name] = report.to_json();
    } else {
      std::printf("%s\n", report.to_text().c_str());
      std::fflush(stdout);
    }
  }
  SINTER_CHECK(has_picked || without_rows.empty(), "nothing in {} has '{}' in its name (--only)", without_rows,
               options.only);
  if (is_json && comm::launch().rank == 0) std::printf("%s\n", all.dump(2).c_str());
}

void print_kernels(bool is_json) {
  base::Table table({"kernel", "reference", "cpu", "cuda"});
  nlohmann::json all = nlohmann::json::array();
  for (const kernels::KernelRow& row : kernels::kernel_matrix()) {
    table.add_row({row.name + (row.is_fused ? " (fused)" : ""), row.reference, row.cpu, row.cuda});
    all.push_back({{"kernel", row.name},
                   {"fused", row.is_fused},
                   {"reference", row.reference},
                   {"cpu", row.cpu},
                   {"cuda", row.cuda}});
  }
  std::printf("%s\n", is_json ? all.dump(2).c_str() : table.to_string().c_str());
}

}  // namespace

void add_bench(Command app) {
  const Command verb = app.add_verb("bench", "every speed with its share of this machine's own limit");
  add_bench_model(verb);
  add_bench_serve(verb);
  auto names = std::make_shared<std::vector<std::string>>();
  auto options = std::make_shared<bench::Options>();
  auto is_json = std::make_shared<bool>(false);
  std::vector<std::string> known;
  std::string help = "what to measure; all when none is named:";
  for (const Benchmark& b : kBenchmarks) {
    known.push_back(b.name);
    help += std::string("\n  ") + b.name + ": " + b.help;
  }
  verb.option("benchmarks", names.get(), help).one_of(known);
  const Option full = verb.flag("--full", &options->is_full, "the long list of cases");
  const Option seconds = verb.option("--seconds", &options->case_seconds,
                                     "time spent on one case, the best run counts (`gpu_kernels`: 0.1 s, the median)")
                             .in_range(0.01, 60.0)
                             .shows_default();
  const Option turns =
      verb.option(
              "--turns", &options->turns,
              "for `train_step`: one case, e.g. bf16x1024; a step for each line of standard input, its milliseconds "
              "printed, so that another program can take steps in turn (bench/torch_steps_in_turns.py)")
          .check([](const std::string& value) { return value.empty() ? "expected a case, as in bf16x1024" : ""; })
          .excludes(full)
          .excludes(seconds);
  verb.option("--tokenizer", &options->tokenizer, "for `tokenizer` and `masks`: a model folder or tokenizer file");
  verb.option("--text", &options->text, "for `tokenizer`: the text to encode");
  verb.option("--only", &options->only,
              "for the GPU's: the rows with this in their name (a model, a kernel, a limit), e.g. 124M, attention");
  verb.option("--precision", &options->precisions, "for `gpu_train_step`: bf16, fp8 (linear layers), or both: bf16,fp8")
      .delimiter(',')
      .one_of({"bf16", "fp8"})
      .shows_default();
  verb.option("--graphs", &options->graphs,
              "for `gpu_train_step`: CUDA graphs on, off, or off,on; default: on, and both in the small case")
      .delimiter(',')
      .one_of({"on", "off"});
  verb.flag("--save", &options->saves_links,
            "for `comm`: save the latency and bandwidth found for the planner, beside what `plan --measure` saved");
  verb.flag("--json", is_json.get(), "print one JSON object instead of tables").excludes(turns);
  auto lists_kernels = std::make_shared<bool>(false);
  verb.flag("--kernels", lists_kernels.get(), "print which backend has which kernel, and stop");
  verb.footer(
      "Examples:\n"
      "  sinter bench ceilings matmul\n"
      "  sinter bench train_step --full --json\n"
      "  sinter bench --kernels");
  verb.on_run([=] {
    if (verb.was_verb_named()) return;
    if (*lists_kernels) return print_kernels(*is_json);
    if (options->turns.empty()) return run_benchmarks(*names, *options, *is_json);
    if (*names != std::vector<std::string>{"train_step"})
      throw base::UsageError("--turns goes with `train_step` alone");
    bench::train_steps_in_turns(options->turns);
  });
}

}  // namespace sinter::cli

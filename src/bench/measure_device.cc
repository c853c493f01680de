#include "bench/measure_device.h"

#include <fmt/core.h>

#include "base/cpu.h"
#include "base/threads.h"
#include "bench/ceilings.h"
#include "bench/train_step.h"
#include "core/device.h"
#include "plan/calibrate.h"
#include "plan/models.h"

namespace sinter::bench {
namespace {

using base::DType;
using plan::Format;

spec::ModelSpec small_model(int64_t layers, int64_t hidden, int64_t vocab) {
  spec::ModelSpec s = plan::resolve_model("gpt2").spec;
  s.num_layers = layers;
  s.hidden = hidden;
  s.num_heads = s.num_kv_heads = hidden / 64;
  s.ffn = 4 * hidden;
  s.vocab_size = vocab;
  s.dropout = {};
  return s;
}

plan::MeasuredStep run_step(const spec::ModelSpec& spec, DType dtype, int64_t sequences, int64_t length,
                            const Options& options) {
  StepSample s = sample_train_step(spec, dtype, sequences, length, 4 * options.case_seconds);
  return {spec, sequences, length, s.matmul, s.attention, s.loss + s.other(), s.optimizer};
}

}  // namespace

MeasuredDevice measure_device(const std::string& name, const Options& options) {
  MeasuredDevice out;
  Ceilings ceilings = measure_ceilings();
  plan::Device& d = out.device;
  d.name = name;
  d.vendor = "measured";
  d.memory_bytes = static_cast<double>(core::runtime({}).free_memory_bytes());
  d.bandwidth = d.measured_read_bandwidth = ceilings.read_bytes_per_s;
  d.flops[static_cast<size_t>(Format::fp32)] = ceilings.fp32_flops;
  d.flops[static_cast<size_t>(Format::bf16)] = ceilings.bf16_flops;
  d.link = "none";
  d.link_bandwidth = d.pcie_bandwidth = ceilings.read_bytes_per_s;
  d.per_node = 1;
  d.network = "ethernet-10";
  out.report.name = "measure";
  out.report.title =
      fmt::format("Training steps on this machine ({} threads, {}): measured beside the planner's prediction",
                  base::num_threads(), base::cpu_description());
  out.report.columns = {{"format", "format"},
                        {"model", "model"},
                        {"tokens", "tokens", 0},
                        {"ms", "measured ms", 1},
                        {"predicted_ms", "predicted ms", 1},
                        {"error", "error %", 1},
                        {"fitted", "fitted to"}};
  for (auto [dtype, format] : {std::pair{DType::f32, Format::fp32}, {DType::bf16, Format::bf16}}) {
    std::vector<plan::MeasuredStep> steps{run_step(small_model(4, 256, 8192), dtype, 4, 128, options),
                                          run_step(small_model(4, 768, 16384), dtype, 2, 256, options),
                                          run_step(small_model(2, 1024, 32768), dtype, 1, 256, options)};
    d.training[static_cast<size_t>(format)] = plan::fit_training_shares(d, format, steps);
    const size_t num_fitted = steps.size();
    steps.push_back(run_step(small_model(6, 512, 16384), dtype, 4, 128, options));
    for (size_t i = 0; i < steps.size(); ++i) {
      const plan::MeasuredStep& s = steps[i];
      double predicted = plan::predict_step_seconds(d, format, s);
      out.report.rows.push_back({std::string(base::dtype_name(dtype)),
                                 fmt::format("{} layers of {}", s.model.num_layers, s.model.hidden),
                                 static_cast<double>(s.sequences * s.seq_len), 1e3 * s.seconds(), 1e3 * predicted,
                                 100 * (predicted / s.seconds() - 1), std::string(i < num_fitted ? "yes" : "no")});
    }
  }
  return out;
}

}  // namespace sinter::bench

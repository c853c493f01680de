#include "bench/measure_device.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>

#include "base/cpu.h"
#include "base/error.h"
#include "base/threads.h"
#include "bench/ceilings.h"
#include "bench/gpu_ceilings.h"
#include "bench/gpu_train_step.h"
#include "bench/train_step.h"
#include "plan/models.h"
#include "plan/own_memory.h"

namespace sinter::bench {
namespace {

using base::DType;
using plan::MatrixFormat;

constexpr double kGiB = 0x1p30;

spec::ModelSpec gpt(int64_t layers, int64_t hidden, int64_t vocab) {
  spec::ModelSpec s = plan::resolve_model("gpt2").spec;
  s.num_layers = layers;
  s.hidden = hidden;
  s.num_heads = s.num_kv_heads = hidden / 64;
  s.ffn = 4 * hidden;
  s.vocab_size = vocab;
  s.dropout = {};
  return s;
}

spec::ModelSpec llama(int64_t layers, int64_t hidden, int64_t kv_heads, int64_t ffn, int64_t vocab) {
  spec::ModelSpec s = plan::resolve_model("llama-2-7b").spec;
  s.num_layers = layers;
  s.hidden = hidden;
  s.num_heads = hidden / 64;
  s.num_kv_heads = kv_heads;
  s.head_dim = 64;
  s.ffn = ffn;
  s.vocab_size = vocab;
  s.max_positions = 4096;
  s.tied_head = true;
  return s;
}

// One measured step by cause, and its memory where the run tells it.
struct Sample {
  plan::MeasuredStep step;
  double planned_bytes = 0, peak_bytes = 0;
};

Sample run_on_cpu(const StepCase& c, DType dtype, const Options& options) {
  constexpr int kLeast = 4;
  StepSample s = sample_train_step(c.model, dtype, c.sequences, c.length, 5 * options.case_seconds, kLeast).undisturbed;
  Sample out;
  out.step = {c.model, c.sequences, c.length, 1, s.matmul, s.attention, s.other(), s.loss, s.optimizer};
  return out;
}

// Products, attention, loss and update are measured alone; what the whole step takes beyond them is element-wise work.
Sample run_on_gpu(const StepCase& c, DType dtype, core::Device device, const Options& options) {
  TrainStepRate r = measure_train_step({c.name, c.model, c.sequences, c.length, c.micro_batches, device, dtype},
                                       5 * options.case_seconds);
  double parts = r.matmul_seconds + r.attention_seconds + r.loss_seconds + r.optimizer_seconds;
  Sample out;
  out.step = {c.model,
              c.sequences,
              c.length,
              c.micro_batches,
              r.matmul_seconds,
              r.attention_seconds,
              std::max(0.01 * r.step_seconds, r.step_seconds - parts),
              r.loss_seconds,
              r.optimizer_seconds};
  out.planned_bytes = static_cast<double>(r.planned_bytes);
  out.peak_bytes = static_cast<double>(r.peak_bytes);
  return out;
}

Sample run_case(const StepCase& c, DType dtype, core::Device device, const Options& options) {
  return device.kind == core::DeviceKind::cpu ? run_on_cpu(c, dtype, options) : run_on_gpu(c, dtype, device, options);
}

std::vector<std::pair<DType, MatrixFormat>> formats_of(core::Device device) {
  if (device.kind == core::DeviceKind::cpu)
    return {{DType::f32, MatrixFormat::fp32}, {DType::bf16, MatrixFormat::bf16}};
  return {{DType::bf16, MatrixFormat::bf16}};
}

plan::DeviceSpec describe_cpu() {
  Ceilings ceilings = measure_ceilings();
  plan::DeviceSpec d;
  d.vendor = "measured";
  d.memory_bytes = static_cast<double>(core::runtime({}).free_memory_bytes());
  d.bandwidth = d.measured_read_bandwidth = ceilings.read_bytes_per_s;
  d.flops[static_cast<size_t>(MatrixFormat::fp32)] = ceilings.fp32_flops;
  d.flops[static_cast<size_t>(MatrixFormat::bf16)] = ceilings.bf16_flops;
  d.link = "none";
  d.link_bandwidth = d.pcie_bandwidth = ceilings.read_bytes_per_s;
  d.per_node = 1;
  d.network = "ethernet-10";
  return d;
}

// The table's entry for a GPU that calls itself "NVIDIA H100 80GB HBM3, ...": words are dropped until a name fits.
std::optional<plan::DeviceSpec> find_known(const std::string& description) {
  std::string name = description.substr(0, description.find(','));
  if (name.rfind("NVIDIA ", 0) == 0) name = name.substr(7);
  plan::HardwareTable table = plan::load_hardware("/dev/null");
  while (!name.empty()) {
    try {
      return table.device(name);
    } catch (const base::Error&) {
      size_t space = name.find_last_of(' ');
      name = space == std::string::npos ? "" : name.substr(0, space);
    }
  }
  return std::nullopt;
}

// Peaks, links and power of a known GPU come from the table; bandwidth and the best product are measured.
plan::DeviceSpec describe_gpu(core::Device device) {
  core::DeviceRuntime& runtime = core::runtime(device);
  DeviceCeilings ceilings = measure_ceilings(device);
  std::optional<plan::DeviceSpec> known = find_known(runtime.description());
  plan::DeviceSpec d = known.value_or(plan::DeviceSpec{});
  d.aliases.clear();
  d.vendor = runtime.description();
  d.memory_bytes = static_cast<double>(runtime.total_memory_bytes());
  d.measured_read_bandwidth = ceilings.copy_bytes;
  d.attainable[static_cast<size_t>(MatrixFormat::bf16)] = ceilings.matmul_flops;
  if (known) return d;
  d.bandwidth = ceilings.copy_bytes;
  d.flops[static_cast<size_t>(MatrixFormat::bf16)] = ceilings.matmul_flops;
  d.flops[static_cast<size_t>(MatrixFormat::fp32)] = ceilings.matmul_f32_flops;
  d.link = "PCIe4";
  d.link_bandwidth = d.pcie_bandwidth = 31e9;
  d.network = "ethernet-100";
  return d;
}

std::vector<Cell> make_row(const StepCase& c, DType dtype, const Sample& s, const plan::MeasuredStep& p,
                           bool is_fitted) {
  auto ms = [](double seconds) { return 1e3 * seconds; };
  std::vector<Cell> row{std::string(is_fitted ? "yes" : "no"),
                        std::string(base::dtype_name(dtype)),
                        c.name,
                        static_cast<double>(c.micro_batches),
                        static_cast<double>(c.sequences),
                        static_cast<double>(c.length),
                        ms(s.step.seconds()),
                        ms(p.seconds()),
                        100 * (p.seconds() / s.step.seconds() - 1),
                        ms(p.matmul - s.step.matmul),
                        ms(p.attention - s.step.attention),
                        ms(p.elementwise - s.step.elementwise),
                        ms(p.loss - s.step.loss),
                        ms(p.optimizer - s.step.optimizer)};
  if (s.peak_bytes == 0) {
    row.resize(row.size() + 3);
    return row;
  }
  plan::OwnRun run{.num_tokens = c.sequences * c.length,
                   .num_sequences = c.sequences,
                   .max_micro_batches = c.micro_batches,
                   .compute = dtype};
  for (double bytes : {plan::own_trainer_memory(c.model, run).total(), s.planned_bytes, s.peak_bytes}) {
    row.emplace_back(bytes / kGiB);
  }
  return row;
}

}  // namespace

std::vector<StepCase> fitted_cases(core::Device device) {
  if (device.kind == core::DeviceKind::cpu) {
    return {{"gpt 8 x 128", gpt(8, 128, 2048), 2, 32},  // little but fixed costs
            {"llama 8 x 128", llama(8, 128, 2, 384, 2048), 1, 64},
            {"gpt 4 x 256", gpt(4, 256, 8192), 4, 128},
            {"gpt 3 x 768", gpt(3, 768, 16384), 2, 256},
            {"gpt 2 x 1024", gpt(2, 1024, 32768), 1, 64},
            {"gpt 4 x 384", gpt(4, 384, 4096), 1, 1024},
            {"llama 3 x 512", llama(3, 512, 4, 1408, 16384), 4, 128},
            {"llama 2 x 1024", llama(2, 1024, 4, 2816, 8192), 1, 512}};
  }
  return {{"gpt 4 x 768", gpt(4, 768, 50304), 32, 1024},
          {"gpt 4 x 1024", gpt(4, 1024, 32768), 8, 1024},
          {"gpt 2 x 1600", gpt(2, 1600, 50304), 16, 1024},
          {"llama 2 x 2048", llama(2, 2048, 8, 8192, 32768), 4, 4096},
          {"llama 4 x 1024", llama(4, 1024, 4, 4096, 32768), 8, 2048}};
}

std::vector<StepCase> checked_cases(core::Device device) {
  if (device.kind == core::DeviceKind::cpu) {
    return {{"GPT-2 124M", gpt(12, 768, 50257), 2, 64},
            {"gpt 6 x 512", gpt(6, 512, 16384), 2, 128},
            {"gpt 8 x 384", gpt(8, 384, 16384), 1, 512},
            {"llama 8 x 512", llama(8, 512, 4, 1536, 32000), 1, 256},
            {"llama 6 x 768", llama(6, 768, 4, 2048, 16384), 4, 64}};
  }
  return {{"GPT-2 124M", gpt(12, 768, 50304), 64, 1024, 8},
          {"GPT-2 350M", gpt(24, 1024, 50304), 16, 1024, 2},
          {"Llama 1B", llama(16, 2048, 8, 8192, 32768), 8, 4096, 2}};
}

Report make_step_report(core::Device device) {
  Report report;
  report.name = "measure";
  std::string where = device.kind == core::DeviceKind::cpu
                          ? fmt::format("{} threads, {}", base::num_threads(), base::cpu_description())
                          : core::runtime(device).description();
  report.title =
      fmt::format("Training steps ({}): ms measured and predicted, then predicted - measured by cause", where);
  report.columns = {{"fitted", "fitted to"},
                    {"format", "format"},
                    {"model", "model"},
                    {"micro_batches", "x", 0},
                    {"sequences", "B", 0},
                    {"length", "T", 0},
                    {"ms", "measured", 1},
                    {"predicted_ms", "predicted", 1},
                    {"error", "error %", 1},
                    {"matmul", "matmul", 1},
                    {"attention", "attention", 1},
                    {"elementwise", "element-wise", 1},
                    {"loss", "loss", 1},
                    {"optimizer", "optimizer", 1},
                    {"formula_gib", "formula GiB", 2},
                    {"planned_gib", "planned", 2},
                    {"peak_gib", "high-water", 2}};
  return report;
}

plan::DeviceSpec measure_device(const std::string& name, core::Device device, const Options& options, Report& report) {
  plan::DeviceSpec d = device.kind == core::DeviceKind::cpu ? describe_cpu() : describe_gpu(device);
  d.name = name;
  for (auto [dtype, format] : formats_of(device)) {
    std::vector<StepCase> cases = fitted_cases(device);
    std::vector<Sample> samples;
    std::vector<plan::MeasuredStep> steps;
    for (const StepCase& c : cases) {
      samples.push_back(run_case(c, dtype, device, options));
      steps.push_back(samples.back().step);
    }
    d.training[static_cast<size_t>(format)] = plan::fit_training_shares(d, format, steps);
    for (size_t i = 0; i < cases.size(); ++i) {
      report.rows.push_back(make_row(cases[i], dtype, samples[i], plan::predict_step(d, format, steps[i]), true));
    }
  }
  return d;
}

double measure_drift(core::Device device, const Options& options, const Report& report) {
  constexpr size_t kCase = 2, kMilliseconds = 6;
  const double before = std::get<double>(report.rows.at(kCase).at(kMilliseconds)) / 1e3;
  const Sample now = run_case(fitted_cases(device).at(kCase), formats_of(device).front().first, device, options);
  return now.step.seconds() / before - 1;
}

void check_measured_device(const plan::DeviceSpec& measured, core::Device device, const Options& options,
                           Report& report) {
  for (auto [dtype, format] : formats_of(device)) {
    if (measured.training[static_cast<size_t>(format)].gemm == 0) continue;
    for (const StepCase& c : checked_cases(device)) {
      Sample s = run_case(c, dtype, device, options);
      report.rows.push_back(make_row(c, dtype, s, plan::predict_step(measured, format, s.step), false));
    }
  }
}

}  // namespace sinter::bench

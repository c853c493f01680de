#include "cli/plan/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "cli/help.h"
#include "plan/scaling/scaling.h"
#include "spec/trained_layouts.h"

namespace sinter::cli {
namespace {

using nlohmann::json;
using plan::TrainingPlan;
using plan::TrainingRequest;

constexpr int kBarWidth = 28;

std::string format_days(double days) {
  return days < 2      ? base::format_duration(days * 86400)
         : days < 1000 ? fmt::format("{:.1f} days", days)
                       : fmt::format("{:.3g} years", days / 365.25);
}

// Red on a terminal.
std::string in_red(const std::string& text) {
  const char* no_color = std::getenv("NO_COLOR");
  const bool is_red = ::isatty(STDOUT_FILENO) == 1 && !(no_color && *no_color);
  return is_red ? "\033[1;31m" + text + "\033[0m" : text;
}

void print_line(const std::string& text) { fmt::print("{}", wrap_text(text, 0, kHelpWidth)); }

// What of the plan is true of `sinter train` today; nothing where all of it is.
void print_trained(const TrainingRequest& request, const TrainingPlan& p) {
  const plan::DeviceSpec& device = request.cluster.device;
  if (request.software.name == "sinter" && device.backend() == plan::TrainBackend::none)
    print_line(fmt::format(
        "`sinter train` runs on GPUs of NVIDIA and on CPUs, not on {}: this is what it would do there.", device.name));
  if (!p.trained) return;
  const plan::Candidate& layout = p.trained->layout;
  print_line(fmt::format("`sinter train` does not do {} yet.", fmt::join(spec::untrained_keys(p.parallel), ", ")));
  const std::string name = spec::describe(layout.parallel), needs = base::format_bytes(layout.memory.device.total());
  if (p.trained->fits) {
    print_line(fmt::format("The best that it runs today: {}, {} a step, MFU {:.1f} %, {} per device.", name,
                           base::format_duration(layout.step.seconds), 100 * layout.step.mfu, needs));
    return;
  }
  print_line(fmt::format("Nothing that it runs today fits: the smallest, {}, needs {} per device{}.", name, needs,
                         p.trained->devices_needed > 0
                             ? fmt::format("; with {}x{} one fits", p.trained->devices_needed, device.name)
                             : ", on more of these devices too"));
}

void print_memory(const TrainingRequest& request, const TrainingPlan& p) {
  const plan::StageMemory& worst = p.memory.worst();
  const double limit = request.cluster.device.memory_bytes, total = worst.device.total();
  fmt::print("Memory per device{}\n",
             p.parallel.pp > 1 ? fmt::format(" (fullest pipeline stage: {} of {})", worst.stage, p.parallel.pp) : "");
  base::Table table({"part", "size", "share of device", ""});
  auto values = plan::part_values(worst.device);
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] <= 0) continue;
    table.add_row({std::string(plan::kMemoryPartNames[i]), base::format_bytes(values[i]),
                   fmt::format("{:.1f} %", 100 * values[i] / limit),
                   base::text_bar(std::min(1.0, values[i] / limit), kBarWidth)});
  }
  table.add_row({"total", base::format_bytes(total), fmt::format("{:.1f} %", 100 * total / limit),
                 base::text_bar(std::min(1.0, total / limit), kBarWidth)});
  fmt::print("{}", table.to_string());
  if (worst.host_bytes > 0) fmt::print("In host memory for this device: {}\n", base::format_bytes(worst.host_bytes));
  if (p.fits) {
    fmt::print("Fits {} ({} left).\n\n", request.cluster.device.name, base::format_bytes(limit - total));
  } else {
    fmt::print("{} {}: {} more than the {} of it that can be planned with, in the layout that needs least.{}\n\n",
               in_red("DOES NOT FIT"), request.cluster.device.name, base::format_bytes(total - p.usable_bytes),
               base::format_bytes(p.usable_bytes),
               p.devices_needed > 0
                   ? fmt::format(" With {}x{} a layout fits.", p.devices_needed, request.cluster.device.name)
                   : "");
  }
}

void print_time(const TrainingRequest& request, const TrainingPlan& p) {
  fmt::print("Time per step of {} sequences x {} tokens\n", base::format_grouped(p.parallel.global_batch),
             p.parallel.seq_len);
  base::Table table({"cause", "time", "share", ""});
  auto values = plan::part_values(p.step.time);
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] < 0.0005 * p.step.seconds) continue;
    double share = values[i] / p.step.seconds;
    table.add_row({std::string(plan::kTimePartNames[i]), base::format_duration(values[i]),
                   fmt::format("{:.1f} %", 100 * share), base::text_bar(share, kBarWidth)});
  }
  table.add_row({"step", base::format_duration(p.step.seconds), "100.0 %", ""});
  fmt::print(
      "{}{} tokens/s in all; MFU {:.1f} %, HFU {:.1f} % (convention megatron: causal attention, head counted)\n"
      "{}\n",
      table.to_string(), base::format_count(p.step.tokens_per_second), 100 * p.step.mfu, 100 * p.step.hfu,
      wrap_text(
          "Constants: " + plan::efficiency_source(request.cluster.device, request.software.name, request.format) + ".",
          0, 100));
}

void print_run(const TrainingRequest& request, const TrainingPlan& p) {
  const double active = static_cast<double>(p.shape.active_parameters());
  fmt::print("The run\n");
  base::Table table({"quantity", "value"});
  table.add_row(
      {"tokens", fmt::format("{} ({:.0f} per active parameter)", base::format_count(p.tokens), p.tokens / active)});
  table.add_row({"steps", format_whole(p.steps)});
  const double loss = plan::scaling_law("epoch").loss(active, p.tokens);
  const bool is_beyond = loss > std::log(static_cast<double>(p.shape.vocab));  // worse than guessing
  table.add_row(
      {"predicted loss (law epoch)", is_beyond ? "- (the law does not reach so small)" : fmt::format("{:.3f}", loss)});
  table.add_row({"wall time", format_days(p.cost.days)});
  table.add_row({"GPU hours", format_whole(p.cost.gpu_hours)});
  table.add_row({fmt::format("money at ${:.2f} per hour", request.cluster.price_per_hour), format_money(p.cost.money)});
  table.add_row({fmt::format("energy at {:g} W and PUE {:g}", request.cluster.device.power_watts, request.pue),
                 format_energy(p.cost.energy_kwh)});
  table.add_row({fmt::format("carbon at {:g} kg/kWh", request.kg_co2_per_kwh), format_carbon(p.cost.co2_tonnes)});
  table.add_row({"checkpoint", base::format_bytes(p.checkpoint_bytes)});
  if (p.reliability.write_s > 0) {
    table.add_row({"checkpoint written in", base::format_duration(p.reliability.write_s)});
    table.add_row({"best checkpoint interval", base::format_duration(p.reliability.interval_s)});
  }
  if (p.reliability.load_s > 0) {
    table.add_row({"checkpoint read in", base::format_duration(p.reliability.load_s)});
    table.add_row({"16-bit weights read in", base::format_duration(p.weights_load_seconds)});
  }
  table.add_row({"mean time between failures", base::format_duration(p.reliability.cluster_mtbf_s)});
  const bool is_known = p.reliability.write_s > 0;
  table.add_row(
      {"share of time that trains", is_known ? fmt::format("{:.1f} %", 100 * p.reliability.goodput) : "not known"});
  fmt::print("{}", table.to_string());
  if (!is_known)
    fmt::print(
        "Give --read and --write (GB/s of storage) for what checkpoints and failures take; time and money are "
        "without.\n");
}

// The causes of the step's time on the busiest device, with the constants they are worked out from.
void explain_time(const TrainingRequest& request, const TrainingPlan& p, std::vector<ExplainedLine>& why) {
  const spec::ParallelSpec& s = p.parallel;
  const plan::DeviceSpec& d = request.cluster.device;
  const plan::Efficiency e = plan::find_efficiency(d, request.software.name, request.format);
  const plan::StepTime& t = p.step.time;
  const double tokens = static_cast<double>(s.global_batch * s.seq_len), ranks = static_cast<double>(s.ranks());
  const double peak = d.compute_rate(request.format);
  const double network = request.cluster.device_network_bandwidth() * e.links.network_share;
  auto add = [&](double seconds, const char* name, const char* formula, std::string numbers) {
    if (seconds > 0) why.push_back({name, formula, std::move(numbers), base::format_duration(seconds)});
  };
  add(t.matmul, "matrix products", "6 x matrix parameters x tokens / devices / (share x peak) + start of each product",
      fmt::format("6 x {:.5g} x {:.5g} / {} / ({:.3f} x {:.4g}) + {:.3g} s each",
                  static_cast<double>(p.shape.matmul_parameters()), tokens, ranks, e.gemm, peak, e.gemm_start));
  const double passes =
      static_cast<double>(p.memory.worst().num_layers * s.micro_batches());  // of blocks on the device
  const double own = static_cast<double>(s.micro_batch * s.seq_len) / static_cast<double>(s.cp);
  const int64_t window = p.shape.block(0).window;
  const double keys =
      window > 0 && window < s.seq_len ? static_cast<double>(window) : static_cast<double>(s.seq_len) / 2;
  add(t.attention, "attention",
      "2 x tokens x mean keys x widths of queries and values / tp x (forward + 3.33 backward) x blocks x micro-batches "
      "/ (share x peak)",
      fmt::format("2 x {:.5g} x {:.5g} x {} / {} x 4.33 x {} / ({:.3f} x {:.4g})", own, keys,
                  p.shape.qk_width() + p.shape.v_width(), s.tp, passes, e.attention * request.software.attention_scale,
                  peak));
  const plan::TimeModel times(p.shape, s, request.cluster, request.software, e, request.format);
  add(t.elementwise, "element-wise",
      "bytes of norms, residuals, rotation, activation in one block x (forward + 2 backward) x blocks x micro-batches "
      "/ (share x bandwidth)",
      fmt::format("{:.5g} x 3 x {} / ({:.3f} x {:.4g}){}",
                  request.software.elementwise_scale * times.elementwise_bytes(p.shape.block(0)), passes, e.memory,
                  d.bandwidth, e.kernel > 0 ? fmt::format(" + {:.3g} s for each kernel", e.kernel) : ""));
  add(t.loss, "loss", "20 bytes per token and vocabulary entry / (share x bandwidth)",
      fmt::format("20 x {:.5g} x {} / tp {} / ({:.3f} x {:.4g})", tokens / static_cast<double>(s.dp() * s.cp),
                  p.shape.vocab, s.tp, e.loss_memory > 0 ? e.loss_memory : e.memory, d.bandwidth));
  add(t.recompute, "recompute",
      s.recompute == spec::Recompute::full
          ? "blocks x micro-batches x the forward pass of a block"
          : "blocks x micro-batches x what selective runs again of a block's forward pass: its share of the products, "
            "0.6 of what is element-wise",
      fmt::format("{} x {:.4g} s", passes, t.recompute / passes));
  add(t.tensor_parallel, "tensor parallel", "4 all-reduces of tokens x hidden per layer and micro-batch",
      fmt::format("{:.4g} bytes among {}, links at {:.3f} x {:.4g}",
                  static_cast<double>(s.micro_batch * s.seq_len / s.cp * p.shape.hidden) * 2, s.tp, e.links.link_share,
                  d.link_bandwidth));
  add(t.bubble, "bubble",
      "the forward and backward pass of the other pp - 1 stages for one micro-batch / chunks of a stage",
      fmt::format("{:.4g} s of {} other stage{} / {}", t.bubble * static_cast<double>(s.interleave), s.pp - 1,
                  s.pp == 2 ? "" : "s", s.interleave));
  add(t.pipeline_transfer, "pipeline transfer", "activations and gradients between stages that nothing hides",
      fmt::format("network at {:.4g} bytes/s per device", network));
  add(t.data_parallel, "data parallel",
      "bytes of gradients and weights x 2 (n - 1) / n / network, less what runs under the backward pass",
      fmt::format("{:.4g} parameters x {} bytes x 2 ({} - 1) / {} / {:.4g} bytes/s, of it {:.0f} % at least is seen",
                  p.memory.worst().parameters, base::dtype_bytes(s.main_gradients), s.dp() * s.cp, s.dp() * s.cp,
                  network, 100 * e.never_hidden));
  add(t.optimizer, "optimizer", "bytes of gradients, master weights and moments / (share x bandwidth)",
      fmt::format("{:.4g} parameters / {} / ({:.3f} x {:.4g})", p.memory.worst().parameters,
                  s.zero >= 1 ? s.shard * s.cp : 1, e.optimizer_memory > 0 ? e.optimizer_memory : e.memory,
                  d.bandwidth));
  std::string sum;
  for (const double part : plan::part_values(t)) {
    if (part > 0) sum += fmt::format("{}{:.4g}", sum.empty() ? "" : " + ", part);
  }
  why.push_back({"step", "sum of the causes", sum + " s", base::format_duration(p.step.seconds)});
}

}  // namespace

void print_answer(const TrainingRequest& request, const TrainingPlan& p) {
  const plan::Cluster& c = request.cluster;
  print_line(fmt::format("{} x {} in {} node{} ({} {:.0f} GB/s per device, {} x {} between nodes)", c.num_devices,
                         c.device.name, c.num_nodes(), c.num_nodes() == 1 ? "" : "s", c.device.link,
                         c.device.link_bandwidth / 1e9, c.rails, c.network.name));
  fmt::print("\n{}: {} of {} per device, in the layout {}.\n", p.fits ? "Fits" : in_red("DOES NOT FIT"),
             base::format_bytes(p.memory.worst().device.total()), base::format_bytes(c.device.memory_bytes),
             spec::describe(p.parallel));
  print_line(fmt::format("A step takes {} ({} tokens/s, MFU {:.1f} %); {} tokens take {}, {} GPU hours, {}.",
                         base::format_duration(p.step.seconds), base::format_count(p.step.tokens_per_second),
                         100 * p.step.mfu, base::format_count(p.tokens), format_days(p.cost.days),
                         format_whole(p.cost.gpu_hours), format_money(p.cost.money)));
  print_trained(request, p);
  fmt::print("\n");
}

void print_training_plan(const TrainingRequest& request, const TrainingPlan& p) {
  if (std::string note = format_note(request.cluster.device, request.format); !note.empty()) fmt::print("{}\n\n", note);
  print_memory(request, p);
  print_time(request, p);
  print_run(request, p);
  if (p.layouts.size() > 1) {
    fmt::print("\nBest layouts (`sinter plan search` lists more and writes the recipe)\n");
    base::Table table({"layout", "step", "MFU", "memory", "why not"});
    bool has_marks = false;
    for (size_t i = 0; i < std::min<size_t>(p.layouts.size(), 5); ++i) {
      const plan::Candidate& c = p.layouts[i];
      const bool is_marked = request.software.name == "sinter" && !spec::untrained_keys(c.parallel).empty();
      has_marks = has_marks || is_marked;
      table.add_row({spec::describe(c.parallel) + (is_marked ? " *" : ""), base::format_duration(c.step.seconds),
                     fmt::format("{:.1f} %", 100 * c.step.mfu), base::format_bytes(c.memory.device.total()),
                     i == 0 ? "the best" : c.why});
    }
    fmt::print("{}{}", table.to_string(), has_marks ? "* not in `sinter train` yet\n" : "");
  }
}

json training_plan_json(const TrainingRequest& request, const TrainingPlan& p) {
  auto layout_json = [](const spec::ParallelSpec& s) {
    return json{{"shard", s.shard},
                {"replica", s.replica},
                {"tp", s.tp},
                {"sequence_parallel", s.sequence_parallel},
                {"pp", s.pp},
                {"interleave", s.interleave},
                {"schedule", spec::pipeline_name(s.schedule)},
                {"cp", s.cp},
                {"ep", s.ep},
                {"zero", s.zero},
                {"recompute", spec::recompute_name(s.recompute)},
                {"micro_batch", s.micro_batch},
                {"global_batch", s.global_batch},
                {"seq_len", s.seq_len}};
  };
  auto memory_json = [](const plan::StageMemory& stage) {
    json parts;
    auto values = plan::part_values(stage.device);
    for (size_t i = 0; i < values.size(); ++i) parts[std::string(plan::kMemoryPartNames[i])] = values[i];
    return json{{"stage", stage.stage},
                {"layers", stage.num_layers},
                {"parts", parts},
                {"total", stage.device.total()},
                {"host_bytes", stage.host_bytes}};
  };
  json stages = json::array(), layouts = json::array(), time;
  for (const plan::StageMemory& stage : p.memory.stages) stages.push_back(memory_json(stage));
  auto values = plan::part_values(p.step.time);
  for (size_t i = 0; i < values.size(); ++i) time[std::string(plan::kTimePartNames[i])] = values[i];
  for (const plan::Candidate& c : p.layouts) {
    layouts.push_back({{"layout", layout_json(c.parallel)},
                       {"step_seconds", c.step.seconds},
                       {"mfu", c.step.mfu},
                       {"memory_bytes", c.memory.device.total()},
                       {"why", c.why}});
  }
  json trained;  // null where the plan is what `sinter train` runs, or for another program
  if (p.trained) {
    trained = {{"fits", p.trained->fits},
               {"layout", layout_json(p.trained->layout.parallel)},
               {"step_seconds", p.trained->layout.step.seconds},
               {"memory_bytes", p.trained->layout.memory.device.total()},
               {"devices_needed", p.trained->devices_needed}};
  }
  return {{"untrained", spec::untrained_keys(p.parallel)},
          {"trained_today", trained},
          {"constants", plan::efficiency_source(request.cluster.device, request.software.name, request.format)},
          {"cluster",
           {{"device", request.cluster.device.name},
            {"devices", request.cluster.num_devices},
            {"nodes", request.cluster.num_nodes()},
            {"per_node", request.cluster.per_node},
            {"network", request.cluster.network.name},
            {"rails", request.cluster.rails}}},
          {"layout", layout_json(p.parallel)},
          {"computed_in", plan::format_name(request.cluster.device.compute_format(request.format))},
          {"fits", p.fits},
          {"devices_needed", p.devices_needed},
          {"memory",
           {{"device_bytes", request.cluster.device.memory_bytes},
            {"worst", memory_json(p.memory.worst())},
            {"stages", stages}}},
          {"time",
           {{"step_seconds", p.step.seconds},
            {"by_cause", time},
            {"tokens_per_second", p.step.tokens_per_second},
            {"mfu", p.step.mfu},
            {"hfu", p.step.hfu},
            {"model_flops", p.step.model_flops},
            {"hardware_flops", p.step.hardware_flops}}},
          {"run",
           {{"tokens", p.tokens},
            {"steps", p.steps},
            {"days", p.cost.days},
            {"gpu_hours", p.cost.gpu_hours},
            {"money", p.cost.money},
            {"energy_kwh", p.cost.energy_kwh},
            {"co2_tonnes", p.cost.co2_tonnes},
            {"checkpoint_bytes", p.checkpoint_bytes},
            {"checkpoint_write_s", p.reliability.write_s},
            {"checkpoint_read_s", p.reliability.load_s},
            {"checkpoint_interval_s", p.reliability.interval_s},
            {"goodput", p.reliability.goodput},
            {"predicted_loss",
             plan::scaling_law("epoch").loss(static_cast<double>(p.shape.active_parameters()), p.tokens)}}},
          {"layouts", layouts}};
}

std::vector<ExplainedLine> explain_training_plan(const TrainingRequest& request, const TrainingPlan& p) {
  const spec::ParallelSpec& s = p.parallel;
  const plan::StageMemory& worst = p.memory.worst();
  const plan::MemoryParts& m = worst.device;
  const auto bytes = [](base::DType d) { return static_cast<double>(base::dtype_bytes(d)); };
  const double psi = worst.parameters;
  auto ways = [&](int from) { return s.zero >= from ? fmt::format(" / {}", s.shard) : std::string(); };
  std::vector<ExplainedLine> why;
  why.push_back({"data-parallel ranks", "devices / (tp x pp x cp)",
                 fmt::format("{} / ({} x {} x {})", request.cluster.num_devices, s.tp, s.pp, s.cp),
                 std::to_string(s.dp())});
  why.push_back({"micro-batches per step", "global batch / (micro-batch x dp)",
                 fmt::format("{} / ({} x {})", s.global_batch, s.micro_batch, s.dp()),
                 std::to_string(s.micro_batches())});
  why.push_back({"parameters on the fullest device", "its layers, embedding and head over tp (norms whole)",
                 fmt::format("stage {} with {} layers", worst.stage, worst.num_layers), fmt::format("{:.6g}", psi)});
  why.push_back({"weights", "parameters x bytes, over the shards with ZeRO-3",
                 fmt::format("{:.5g} x {}{}", psi, bytes(s.compute), ways(3)), base::format_bytes(m.weights)});
  why.push_back({"gradients", "parameters x bytes, over the shards with ZeRO-2 and 3",
                 fmt::format("{:.5g} x {}{}", psi, bytes(s.main_gradients), ways(2)), base::format_bytes(m.gradients)});
  why.push_back({"master weights", "parameters x 4, over the shards with ZeRO-1 and up",
                 fmt::format("{:.5g} x {}{}", psi, bytes(s.master), ways(1)), base::format_bytes(m.master)});
  why.push_back({"optimizer moments", "parameters x moments x bytes, over the shards with ZeRO-1 and up",
                 fmt::format("{:.5g} x {} x {}{}", psi, s.num_moments, bytes(s.moments), ways(1)),
                 base::format_bytes(m.optimizer)});
  plan::BlockActivations block = plan::block_activations(p.shape, p.shape.block(0), s, request.software);
  why.push_back({"activations of one block and micro-batch",
                 "attention + attention core + MLP (Korthikanti et al. 2022, for this program)",
                 fmt::format("{:.5g} + {:.5g} + {:.5g}", block.attention, block.attention_core, block.mlp),
                 base::format_bytes(block.total())});
  why.push_back({"activations",
                 fmt::format("kept by recompute '{}' for every block and micro-batch in flight",
                             spec::recompute_name(s.recompute)),
                 fmt::format("checkpoint {:.5g} or whole {:.5g} bytes per block, {} layers", block.checkpoint,
                             block.total(), worst.num_layers),
                 base::format_bytes(m.activations)});
  why.push_back({"memory per device", "sum of the parts", "", base::format_bytes(m.total())});
  const double m_count = static_cast<double>(s.micro_batches()), pipe = static_cast<double>(s.pp),
               v = static_cast<double>(s.interleave);
  if (s.pp > 1) {
    why.push_back({"bubble of the ideal time", "(p - 1) / (v m)",
                   fmt::format("({} - 1) / ({} x {})", s.pp, s.interleave, m_count),
                   fmt::format("{:.4f}", (pipe - 1) / (v * m_count))});
    why.push_back({"bubble of the whole step", "(p - 1) / (v m + p - 1)",
                   fmt::format("({0} - 1) / ({1} x {2} + {0} - 1)", s.pp, s.interleave, m_count),
                   fmt::format("{:.4f}", (pipe - 1) / (v * m_count + pipe - 1))});
  }
  explain_time(request, p, why);
  const double peak = request.cluster.device.compute_rate(request.format),
               devices = static_cast<double>(request.cluster.num_devices);
  why.push_back({"MFU", "model FLOPs of the step / (step x devices x peak)",
                 fmt::format("{:.5g} / ({:.5g} x {} x {:.5g})", p.step.model_flops, p.step.seconds, devices, peak),
                 fmt::format("{:.2f} %", 100 * p.step.mfu)});
  why.push_back({"steps", "tokens / (global batch x sequence length)",
                 fmt::format("{:.5g} / ({} x {})", p.tokens, s.global_batch, s.seq_len), format_whole(p.steps)});
  why.push_back(
      {"GPU hours", "steps x step x devices / 3600 / share of time that trains",
       fmt::format("{:.0f} x {:.5g} x {} / 3600 / {:.4f}", p.steps, p.step.seconds, devices, p.reliability.goodput),
       fmt::format("{:.6g}", p.cost.gpu_hours)});
  why.push_back({"checkpoint", "parameters x (2 + 4 + 4 + 4) bytes", fmt::format("{} x 14", p.shape.total_parameters()),
                 base::format_bytes(p.checkpoint_bytes)});
  if (p.reliability.write_s > 0) {
    why.push_back({"best checkpoint interval", "sqrt(2 x write time x MTBF of the cluster)",
                   fmt::format("sqrt(2 x {:.4g} x {:.5g})", p.reliability.write_s, p.reliability.cluster_mtbf_s),
                   base::format_duration(p.reliability.interval_s)});
  }
  return why;
}

}  // namespace sinter::cli

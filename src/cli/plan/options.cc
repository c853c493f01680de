#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/help.h"
#include "cli/plan/plan.h"
#include "plan/cost.h"
#include "plan/flops.h"
#include "plan/software.h"

namespace sinter::cli {

void add_cluster_options(Command command, ClusterOptions& o, const std::string& default_gpus) {
  o.gpus = default_gpus;
  command.option("--gpus", &o.gpus, "devices: 64xA100-80GB, 4x8xH100 (nodes x devices), H200, or a cluster file *.toml")
      .shows_default();
  command.option("--nodes", &o.nodes, "nodes the devices stand in (default: as many as the device's usual node needs)")
      .at_least(1);
  command.option("--network", &o.network,
                 "adapters between nodes: ndr-400, hdr-200, ethernet-100, ... (see `plan devices`)");
  command.option("--rails", &o.rails, "adapters per node").at_least(1);
  command.option("--read", &o.read_gb_s, "storage read rate of the whole cluster, GB/s").positive();
  command.option("--write", &o.write_gb_s, "storage write rate of the whole cluster, GB/s").positive();
  command.option("--price", &o.price, "USD per device and hour (default: the hardware table's assumption)").at_least(0);
  command.option("--mtbf", &o.mtbf_hours, "mean hours between failures of one device (default: Llama 3's run)")
      .positive();
  command.option("--hardware", &o.hardware, "your own hardware table (TOML), beside the built-in one");
}

plan::MatrixFormat parse_trained_format(const std::string& text) {
  const plan::MatrixFormat format = plan::parse_format(text);
  if (plan::format_bytes_per_element(format) < 1 || format == plan::MatrixFormat::int8 ||
      format == plan::MatrixFormat::fp64)
    base::fail_usage("--format {}: training is planned in bf16, fp16, fp8, tf32 and fp32 (`plan inference` has more)",
                     plan::format_name(format));
  return format;
}

std::string format_help() {
  return fmt::format("number format of the products: {}", fmt::join(plan::kFormatNames, ", "));
}

std::string software_help() {
  return fmt::format("program whose memory and overlap are assumed: {}", fmt::join(plan::software_names(), ", "));
}

std::string grid_help() {
  std::vector<std::string_view> names;
  for (const plan::GridIntensity& grid : plan::grid_intensities()) names.push_back(grid.name);
  return fmt::format("kg CO2 per kWh, or one of {}", fmt::join(names, ", "));
}

std::string convention_help() {
  std::vector<std::string_view> names;
  for (const plan::FlopConvention& c : plan::flop_conventions()) names.push_back(c.name);
  return fmt::format("FLOP convention: {} (`sinter plan MODEL` has their formulas)", fmt::join(names, ", "));
}

plan::HardwareTable make_hardware(const ClusterOptions& o) { return plan::load_hardware(o.hardware); }

int64_t choose_seq_len(int64_t asked, const spec::ModelSpec& model) {
  if (model.learned_positions && asked > model.max_positions)
    base::fail_usage("--seq-len {} is more than the {} positions the model has learned", asked, model.max_positions);
  return asked > 0 ? asked : std::clamp<int64_t>(model.max_positions, 1, 4096);
}

plan::Cluster make_cluster(const ClusterOptions& o) {
  plan::HardwareTable table = make_hardware(o);
  plan::Cluster cluster = plan::parse_cluster(table, o.gpus);
  if (o.nodes > 0) {
    if (o.nodes > cluster.num_devices || cluster.num_devices % o.nodes != 0) {
      int64_t nearest = 1;
      for (int64_t n = 1; n <= cluster.num_devices; ++n) {
        if (cluster.num_devices % n == 0 && std::abs(n - o.nodes) < std::abs(nearest - o.nodes)) nearest = n;
      }
      const bool has_one_number = o.gpus.starts_with(std::to_string(cluster.num_devices) + "x");
      base::fail_usage(
          "--nodes {} does not divide {} devices; the nearest that does is {}{}", o.nodes, cluster.num_devices, nearest,
          has_one_number
              ? fmt::format("; {} nodes of {} each are --gpus {}x{}", o.nodes, cluster.num_devices, o.nodes, o.gpus)
              : "");
    }
    int per_node = static_cast<int>(cluster.num_devices / o.nodes);
    cluster.rails = std::max(1, cluster.rails * per_node / cluster.per_node);
    cluster.per_node = per_node;
  }
  if (!o.network.empty()) cluster.network = table.network(o.network);
  if (o.rails > 0) cluster.rails = o.rails;
  if (o.read_gb_s > 0) cluster.storage.read_bandwidth = o.read_gb_s * 1e9;
  if (o.write_gb_s > 0) cluster.storage.write_bandwidth = o.write_gb_s * 1e9;
  if (o.price >= 0) cluster.price_per_hour = o.price;
  if (o.mtbf_hours > 0) cluster.mtbf_hours = o.mtbf_hours;
  return cluster;
}

void print_explanation(const std::vector<ExplainedLine>& lines) {
  fmt::print("\nHow each number comes about\n");
  for (const ExplainedLine& line : lines) {
    fmt::print("  {}\n", line.name);
    for (const std::string& part : {line.formula, line.numbers, line.result}) {
      if (!part.empty()) fmt::print("{}", wrap_text("= " + part, 6, kHelpWidth));
    }
  }
}

void print_json(const nlohmann::json& value) { fmt::print("{}\n", value.dump(2)); }

std::string format_note(const plan::DeviceSpec& device, plan::MatrixFormat format) {
  const plan::MatrixFormat used = device.compute_format(format);
  if (used == format) return "";
  std::string note = fmt::format("{} has no unit for {}: products run as {} at {:g} TFLOP/s", device.name,
                                 plan::format_name(format), plan::format_name(used), device.peak(used) / 1e12);
  if (double faster = device.peak(plan::MatrixFormat::fp16); faster > 1.5 * device.peak(used))
    note += fmt::format("; --format fp16 has {:g}", faster / 1e12);
  return note;
}

std::string format_money(double dollars) {
  if (dollars >= 1e15) return fmt::format("${:.3g}", dollars);
  if (dollars >= 1e9) return fmt::format("${:.2f}B", dollars / 1e9);
  if (dollars >= 1e6) return fmt::format("${:.2f}M", dollars / 1e6);
  if (dollars >= 1e4) return fmt::format("${:.1f}k", dollars / 1e3);
  return fmt::format("${:.2f}", dollars);
}

std::string format_whole(double number) {
  if (number > 0 && number < 10 && number != std::floor(number)) return fmt::format("{:.3g}", number);
  return std::abs(number) < 1e15 ? base::format_grouped(std::llround(number)) : fmt::format("{:.3g}", number);
}

std::string format_energy(double kwh) {
  if (kwh < 1) return fmt::format("{:.3g} Wh", kwh * 1000);
  return kwh < 1000 ? fmt::format("{:.3g} kWh", kwh) : fmt::format("{:.4g} MWh", kwh / 1000);
}

std::string format_carbon(double tonnes) {
  if (tonnes < 1e-3) return fmt::format("{:.3g} g CO2", tonnes * 1e6);
  return tonnes < 1 ? fmt::format("{:.3g} kg CO2", tonnes * 1e3) : fmt::format("{:.4g} t CO2", tonnes);
}

}  // namespace sinter::cli

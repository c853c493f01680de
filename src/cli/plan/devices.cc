// `sinter plan devices` and `sinter plan models`: what the planner knows by name.
#include <fmt/format.h>

#include <cctype>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "cli/command.h"
#include "cli/plan/plan.h"
#include "plan/models.h"
#include "spec/parameters.h"

namespace sinter::cli {
namespace {

using nlohmann::json;
using plan::MatrixFormat;

json device_json(const plan::DeviceSpec& d) {
  json rates = json::object();
  for (int i = 0; i < plan::kNumFormats; ++i) {
    if (d.flops[static_cast<size_t>(i)] > 0)
      rates[std::string(plan::format_name(static_cast<MatrixFormat>(i)))] = d.flops[static_cast<size_t>(i)];
  }
  return {{"name", d.name},
          {"aliases", d.aliases},
          {"vendor", d.vendor},
          {"memory_bytes", d.memory_bytes},
          {"bandwidth", d.bandwidth},
          {"flops", rates},
          {"link", d.link},
          {"link_bandwidth", d.link_bandwidth},
          {"pcie_bandwidth", d.pcie_bandwidth},
          {"per_node", d.per_node},
          {"network", d.network},
          {"rails", d.rails},
          {"power_watts", d.power_watts},
          {"price_per_hour", d.price_per_hour}};
}

std::string in_small_letters(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// "a100": all whose name has it, else the one that has it as an alias.
void keep_devices(plan::HardwareTable& table, const std::string& name) {
  std::vector<plan::DeviceSpec> found;
  for (const plan::DeviceSpec& d : table.devices) {
    if (in_small_letters(d.name).find(in_small_letters(name)) != std::string::npos) found.push_back(d);
  }
  if (found.empty()) found = {table.device(name)};
  table.devices = found;
}

void run_devices(const std::string& hardware, const std::string& name, bool as_json) {
  plan::HardwareTable table = plan::load_hardware(hardware);
  if (!name.empty()) keep_devices(table, name);
  if (as_json) {
    json out{{"devices", json::array()}, {"networks", json::array()}};
    for (const plan::DeviceSpec& d : table.devices) out["devices"].push_back(device_json(d));
    for (const plan::Network& n : table.networks) {
      out["networks"].push_back({{"name", n.name},
                                 {"kind", n.kind},
                                 {"bandwidth", n.bandwidth},
                                 {"latency", n.latency},
                                 {"efficiency", n.efficiency}});
    }
    return print_json(out);
  }
  auto tera = [](const plan::DeviceSpec& d, MatrixFormat f) {
    return d.peak(f) > 0 ? fmt::format("{:g}", d.peak(f) / 1e12) : "-";
  };
  base::Table text({"device", "GiB", "GB/s", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8", "int4", "link",
                    "GB/s", "W", "$/h"});
  for (const plan::DeviceSpec& d : table.devices) {
    std::vector<std::string> row{d.name, fmt::format("{:.1f}", d.memory_bytes / 0x1p30),
                                 fmt::format("{:g}", d.bandwidth / 1e9)};
    using enum MatrixFormat;
    for (MatrixFormat f : {fp32, tf32, fp16, bf16, fp8, fp4, int8, int4}) row.push_back(tera(d, f));
    row.insert(row.end(), {d.link, fmt::format("{:g}", d.link_bandwidth / 1e9), fmt::format("{:g}", d.power_watts),
                           fmt::format("{:.2f}", d.price_per_hour)});
    text.add_row(std::move(row));
  }
  fmt::print("{}\nRates: dense TFLOP/s (TOP/s). Links: GB/s per device in one direction. Prices are assumptions.\n\n",
             text.to_string());
  base::Table networks({"network", "kind", "GB/s per adapter", "latency us"});
  for (const plan::Network& n : table.networks) {
    networks.add_row({n.name, n.kind, fmt::format("{:g}", n.bandwidth / 1e9), fmt::format("{:g}", n.latency * 1e6)});
  }
  fmt::print("{}", networks.to_string());
}

void run_models(bool as_json) {
  json out = json::array();
  base::Table text({"model", "parameters", "active", "layers", "hidden", "heads", "KV", "ffn", "vocab", "context"});
  for (const plan::ModelPreset& preset : plan::model_presets()) {
    const spec::ModelSpec& s = preset.spec;
    spec::ParameterCounts counts = spec::count_parameters(s);
    out.push_back({{"name", preset.name},
                   {"aliases", preset.aliases},
                   {"family", spec::family_name(s.family)},
                   {"parameters", counts.total},
                   {"active_parameters", counts.active},
                   {"layers", s.num_layers},
                   {"hidden", s.hidden},
                   {"heads", s.num_heads},
                   {"kv_heads", s.num_kv_heads},
                   {"ffn", s.ffn},
                   {"vocab", s.vocab_size},
                   {"context", s.max_positions}});
    text.add_row({preset.name, base::format_grouped(counts.total),
                  base::format_count(static_cast<double>(counts.active)), std::to_string(s.num_layers),
                  std::to_string(s.hidden), std::to_string(s.num_heads), std::to_string(s.num_kv_heads),
                  std::to_string(s.moe.num_experts > 0 ? s.moe.ffn : s.ffn), std::to_string(s.vocab_size),
                  std::to_string(s.max_positions)});
  }
  if (as_json) return print_json(out);
  fmt::print("{}", text.to_string());
}

}  // namespace

void add_plan_devices(Command plan) {
  struct Options {
    std::string hardware, name;
    bool json = false;
  };
  auto o = std::make_shared<Options>();
  const Command devices = plan.add_verb("devices", "the hardware table: rates, memory, links, power, prices");
  devices.footer("Examples:\n  sinter plan devices\n  SINTER_HARDWARE=mine.toml sinter plan devices --json");
  devices.option("name", &o->name, "one device");
  devices.option("--hardware", &o->hardware, "your own hardware table (TOML), beside the built-in one");
  devices.flag("--json", &o->json, "print JSON");
  devices.on_run([o] { run_devices(o->hardware, o->name, o->json); });
  auto m = std::make_shared<Options>();
  const Command models = plan.add_verb("models", "the models known by name, with exact parameter counts");
  models.footer("Examples:\n  sinter plan models");
  models.flag("--json", &m->json, "print JSON");
  models.on_run([m] { run_models(m->json); });
}

}  // namespace sinter::cli

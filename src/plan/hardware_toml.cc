// Reading and writing the hardware table and cluster files.
#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "plan/hardware.h"

namespace sinter::plan {

extern const char* const kHardwareToml;  // made from data/hardware.toml by the build

namespace {

using base::fail;

toml::table parse_toml(std::string_view text, const std::string& origin) {
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& e) {
    fail("'{}' line {}: {}", origin, e.source().begin.line, e.description());
  }
}

// One table with typed, checked access; every key read is remembered so that an unknown one can be refused.
class Section {
 public:
  Section(const toml::table& table, std::string where) : table_(table), where_(std::move(where)) {}

  bool has(const std::string& key) const { return table_.contains(key); }
  std::string text(const std::string& key, const std::string& otherwise = "") {
    known_.push_back(key);
    const toml::node* node = table_.get(key);
    if (!node) return otherwise;
    SINTER_CHECK(node->is_string(), "{}: key '{}' must be a string", where_, key);
    return **node->as_string();
  }
  double number(const std::string& key, double otherwise, double low = 0) {
    known_.push_back(key);
    const toml::node* node = table_.get(key);
    if (!node) return otherwise;
    SINTER_CHECK(node->is_number(), "{}: key '{}' must be a number", where_, key);
    double value = *node->value<double>();
    SINTER_CHECK(std::isfinite(value) && value >= low, "{}: key '{}' is {}; expected at least {}", where_, key, value,
                 low);
    return value;
  }
  int count(const std::string& key, int otherwise) {
    double value = number(key, otherwise, 1);
    SINTER_CHECK(value == std::floor(value) && value <= 1e7, "{}: key '{}' is {}; expected a whole number", where_, key,
                 value);
    return static_cast<int>(value);
  }
  std::vector<std::string> texts(const std::string& key) {
    known_.push_back(key);
    std::vector<std::string> out;
    const toml::node* node = table_.get(key);
    if (!node) return out;
    SINTER_CHECK(node->is_array(), "{}: key '{}' must be a list of strings", where_, key);
    for (const toml::node& item : *node->as_array()) {
      SINTER_CHECK(item.is_string(), "{}: key '{}' must be a list of strings", where_, key);
      out.push_back(**item.as_string());
    }
    return out;
  }
  // [[size, share], ...] with sizes times `unit`.
  EfficiencyCurve curve(const std::string& key, double unit) {
    known_.push_back(key);
    EfficiencyCurve out;
    const toml::node* node = table_.get(key);
    if (!node) return out;
    const toml::array* rows = node->as_array();
    SINTER_CHECK(rows, "{}: key '{}' must be a list of [size, share]", where_, key);
    for (const toml::node& row : *rows) {
      const toml::array* pair = row.as_array();
      SINTER_CHECK(pair && pair->size() == 2 && (*pair)[0].is_number() && (*pair)[1].is_number(),
                   "{}: key '{}' must be a list of [size, share]", where_, key);
      double size = *(*pair)[0].value<double>() * unit, share = *(*pair)[1].value<double>();
      SINTER_CHECK(size > 0 && share > 0 && share <= 1 && (out.points.empty() || size > out.points.back().first),
                   "{}: key '{}': sizes must rise and shares be in (0, 1]", where_, key);
      out.points.emplace_back(size, share);
    }
    return out;
  }
  void allow(const std::string& key) { known_.push_back(key); }
  void refuse_unknown() const {
    for (const auto& [key, value] : table_) {
      std::string name(key.str());
      if (std::find(known_.begin(), known_.end(), name) == known_.end()) {
        fail("{}: unknown key '{}'{}", where_, name, base::did_you_mean(name, known_));
      }
    }
  }

 private:
  const toml::table& table_;
  std::string where_;
  std::vector<std::string> known_;
};

DeviceSpec read_device(const toml::table& table, const std::string& origin) {
  std::string name = table["name"].value_or(std::string());
  SINTER_CHECK(!name.empty(), "'{}': a [[device]] has no name", origin);
  Section s(table, fmt::format("'{}': device '{}'", origin, name));
  DeviceSpec d;
  d.name = s.text("name");
  d.aliases = s.texts("aliases");
  d.vendor = s.text("vendor");
  d.memory_bytes = s.number("memory_gib", 0) * 0x1p30;
  d.bandwidth = s.number("bandwidth_gb_s", 0) * 1e9;
  bool any_rate = false;
  for (int i = 0; i < kNumFormats; ++i) {
    auto at = static_cast<size_t>(i);
    d.flops[at] = s.number(std::string(kFormatNames[at]), 0) * 1e12;
    d.attainable[at] = s.number("attainable_" + std::string(kFormatNames[at]), 0) * 1e12;
    any_rate = any_rate || d.flops[at] > 0;
    const std::string prefix = fmt::format("train_{}_", kFormatNames[at]);
    d.training[at] = {s.number(prefix + "gemm", 0),
                      s.number(prefix + "attention", 0),
                      s.number(prefix + "memory", 0),
                      s.number(prefix + "gemm_start_us", 0) * 1e-6,
                      s.number(prefix + "kernel_us", 0) * 1e-6,
                      s.number(prefix + "gemm_memory", 0),
                      s.number(prefix + "attention_memory", 0),
                      s.number(prefix + "loss", 0),
                      s.number(prefix + "optimizer", 0),
                      s.number(prefix + "gemm_weights", 0)};
  }
  SINTER_CHECK(d.memory_bytes > 0 && d.bandwidth > 0 && any_rate,
               "'{}': device '{}' needs memory_gib, bandwidth_gb_s and at least one rate (fp32, bf16, ...)", origin,
               name);
  d.pcie_bandwidth = s.number("pcie_gb_s", 31) * 1e9;
  d.link = s.text("link", "PCIe4");
  d.link_bandwidth = s.number("link_gb_s", d.pcie_bandwidth / 1e9) * 1e9;
  d.pair_bandwidth = s.number("pair_gb_s", 0) * 1e9;
  d.link_latency = s.number("link_us", 0) * 1e-6;
  d.per_node = s.count("per_node", 8);
  d.network = s.text("network", "ethernet-100");
  d.rails = s.count("rails", 1);
  d.power_watts = s.number("power_w", 0);
  d.price_per_hour = s.number("price_per_hour", 0);
  d.gemm = s.curve("gemm_efficiency", 1e9);
  d.memory = s.curve("memory_efficiency", 1e6);
  d.measured_read_bandwidth = s.number("measured_read_gb_s", 0) * 1e9;
  s.refuse_unknown();
  return d;
}

Network read_network(const toml::table& table, const std::string& origin) {
  std::string name = table["name"].value_or(std::string());
  SINTER_CHECK(!name.empty(), "'{}': a [[network]] has no name", origin);
  Section s(table, fmt::format("'{}': network '{}'", origin, name));
  Network n;
  n.name = s.text("name");
  n.aliases = s.texts("aliases");
  n.kind = s.text("kind", "Ethernet");
  n.bandwidth = s.number("gb_s", 0) * 1e9;
  n.latency = s.number("latency_us", 10) * 1e-6;
  n.efficiency = s.number("efficiency", 0.9);
  SINTER_CHECK(n.bandwidth > 0 && n.efficiency > 0 && n.efficiency <= 1,
               "'{}': network '{}' needs gb_s above 0 and efficiency in (0, 1]", origin, name);
  s.refuse_unknown();
  return n;
}

template <class T>
void add_or_replace(std::vector<T>& all, T entry) {
  auto same = std::find_if(all.begin(), all.end(), [&](const T& other) { return other.name == entry.name; });
  if (same != all.end()) {
    *same = std::move(entry);
  } else {
    all.push_back(std::move(entry));
  }
}

void add_tables(HardwareTable& table, const toml::table& root, const std::string& origin) {
  auto each = [&](const char* key, const std::function<void(const toml::table&)>& add) {
    const toml::node* node = root.get(key);
    if (!node) return;
    const toml::array* entries = node->as_array();
    SINTER_CHECK(entries, "'{}': write [[{}]], a list of tables", origin, key);
    for (const toml::node& entry : *entries) {
      SINTER_CHECK(entry.is_table(), "'{}': write [[{}]], a list of tables", origin, key);
      add(*entry.as_table());
    }
  };
  each("device", [&](const toml::table& t) { add_or_replace(table.devices, read_device(t, origin)); });
  each("network", [&](const toml::table& t) { add_or_replace(table.networks, read_network(t, origin)); });
}

}  // namespace

void HardwareTable::add_toml(std::string_view text, const std::string& origin) {
  toml::table root = parse_toml(text, origin);
  for (const auto& [key, value] : root) {
    std::string name(key.str());
    SINTER_CHECK(name == "device" || name == "network",
                 "'{}': unknown section '{}'; expected [[device]] or [[network]]", origin, name);
  }
  add_tables(*this, root, origin);
}

HardwareTable load_hardware(const std::string& path) {
  static const HardwareTable built_in = [] {
    HardwareTable table;
    table.add_toml(kHardwareToml, "built-in hardware table");
    return table;
  }();
  HardwareTable table = built_in;
  std::string user = path.empty() ? user_hardware_path() : path;
  const char* variable = std::getenv("SINTER_HARDWARE");
  const bool is_there = std::filesystem::exists(user);
  if (path.empty() && !is_there && variable && *variable) {
    base::fail_usage(
        "SINTER_HARDWARE is '{}', and there is no such file; unset it, or write the file with "
        "`sinter plan --measure`",
        user);
  }
  if (!path.empty() || is_there) table.add_toml(base::read_file(user), user);
  return table;
}

std::string device_toml(const DeviceSpec& d) {
  std::string out = "[[device]]\n";
  auto quoted = [](const std::string& text) {
    std::string escaped;
    for (char c : text) {
      if (c == '"' || c == '\\') escaped += '\\';
      escaped += c;
    }
    return '"' + escaped + '"';
  };
  auto put = [&](std::string_view key, const std::string& value) { out += fmt::format("{} = {}\n", key, value); };
  auto number = [&](std::string_view key, double value) {
    if (value > 0) put(key, fmt::format("{:.6g}", value));
  };
  auto curve = [&](std::string_view key, const EfficiencyCurve& c, double unit) {
    if (c.empty()) return;
    std::vector<std::string> rows;
    for (auto [size, share] : c.points) rows.push_back(fmt::format("[{:.6g}, {:.4g}]", size / unit, share));
    put(key, fmt::format("[{}]", fmt::join(rows, ", ")));
  };
  put("name", quoted(d.name));
  std::vector<std::string> aliases;
  for (const std::string& alias : d.aliases) aliases.push_back(quoted(alias));
  if (!aliases.empty()) put("aliases", fmt::format("[{}]", fmt::join(aliases, ", ")));
  if (!d.vendor.empty()) put("vendor", quoted(d.vendor));
  number("memory_gib", d.memory_bytes / 0x1p30);
  number("bandwidth_gb_s", d.bandwidth / 1e9);
  number("measured_read_gb_s", d.measured_read_bandwidth / 1e9);
  for (size_t i = 0; i < kNumFormats; ++i) number(kFormatNames[i], d.flops[i] / 1e12);
  for (size_t i = 0; i < kNumFormats; ++i)
    number(fmt::format("attainable_{}", kFormatNames[i]), d.attainable[i] / 1e12);
  put("link", quoted(d.link));
  number("link_gb_s", d.link_bandwidth / 1e9);
  number("pair_gb_s", d.pair_bandwidth / 1e9);
  number("link_us", d.link_latency * 1e6);
  number("pcie_gb_s", d.pcie_bandwidth / 1e9);
  number("per_node", d.per_node);
  if (!d.network.empty()) put("network", quoted(d.network));
  number("rails", d.rails);
  number("power_w", d.power_watts);
  number("price_per_hour", d.price_per_hour);
  for (size_t i = 0; i < kNumFormats; ++i) {
    const TrainingShares& t = d.training[i];
    const std::string prefix = fmt::format("train_{}_", kFormatNames[i]);
    number(prefix + "gemm", t.gemm);
    number(prefix + "attention", t.attention);
    number(prefix + "memory", t.memory);
    number(prefix + "gemm_start_us", t.gemm_start * 1e6);
    number(prefix + "kernel_us", t.kernel * 1e6);
    number(prefix + "gemm_memory", t.gemm_memory);
    number(prefix + "attention_memory", t.attention_memory);
    number(prefix + "loss", t.loss);
    number(prefix + "optimizer", t.optimizer);
    number(prefix + "gemm_weights", t.gemm_weights);
  }
  curve("gemm_efficiency", d.gemm, 1e9);
  curve("memory_efficiency", d.memory, 1e6);
  return out;
}

Cluster load_cluster(HardwareTable table, const std::string& path) {
  toml::table root = parse_toml(base::read_file(path), path);
  for (const auto& [key, value] : root) {
    std::string name(key.str());
    SINTER_CHECK(name == "cluster" || name == "storage" || name == "device" || name == "network",
                 "'{}': unknown section '{}'; expected [cluster], [storage], [[device]], [[network]]", path, name);
  }
  add_tables(table, root, path);
  const toml::table* section = root["cluster"].as_table();
  SINTER_CHECK(section, "'{}': no [cluster] section; expected one with device, nodes, per_node", path);
  Section s(*section, fmt::format("'{}': [cluster]", path));
  Cluster c;
  SINTER_CHECK(s.has("device"), "'{}': [cluster] has no device", path);
  c.device = table.device(s.text("device"));
  c.per_node = s.count("per_node", c.device.per_node);
  const bool by_devices = s.has("devices");
  c.num_devices = by_devices ? s.count("devices", 1) : static_cast<int64_t>(s.count("nodes", 1)) * c.per_node;
  s.allow("nodes");
  s.allow("devices");
  c.network = table.network(s.text("network", c.device.network));
  c.rails = s.count("rails", std::max(1, c.device.rails * c.per_node / std::max(1, c.device.per_node)));
  c.price_per_hour = s.number("price_per_hour", c.device.price_per_hour);
  c.mtbf_hours = s.number("mtbf_hours", 0);
  c.device.link_bandwidth = s.number("link_gb_s", c.device.link_bandwidth / 1e9) * 1e9;
  s.refuse_unknown();
  if (const toml::table* storage = root["storage"].as_table()) {
    Section t(*storage, fmt::format("'{}': [storage]", path));
    c.storage.read_bandwidth = t.number("read_gb_s", 0) * 1e9;
    c.storage.write_bandwidth = t.number("write_gb_s", 0) * 1e9;
    t.refuse_unknown();
  }
  return c;
}

}  // namespace sinter::plan

#include "plan/hardware.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "base/text.h"

namespace sinter::plan {
namespace {

// Names compare without case, spaces, dashes and underscores: "RTX 4090" is "rtx-4090".
std::string plain(std::string_view name) {
  std::string out;
  for (char c : name) {
    if (c != ' ' && c != '-' && c != '_') out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return out;
}

template <class T>
const T& find_by_name(const std::vector<T>& all, std::string_view name, const char* what) {
  const std::string wanted = plain(name);
  std::vector<std::string> keys;
  std::vector<const T*> owners;
  for (const T& entry : all) {
    std::vector<std::string> names{entry.name};
    names.insert(names.end(), entry.aliases.begin(), entry.aliases.end());
    for (const std::string& candidate : names) {
      if (plain(candidate) == wanted) return entry;
      keys.push_back(plain(candidate));
      owners.push_back(&entry);
    }
  }
  if (wanted == plain(kMeasuredName))
    base::fail_usage("{} '{}' has not been measured yet; run `sinter plan --measure` to add it", what, name);
  // The nearest by spelling; else one that starts alike ("A100x" -> A100).
  std::string nearest = base::nearest_name(wanted, keys);
  for (size_t n = wanted.size(); nearest.empty() && n >= 2; --n) {
    auto it = std::find_if(keys.begin(), keys.end(),
                           [&](const std::string& k) { return k.starts_with(wanted.substr(0, n)); });
    if (it != keys.end()) nearest = *it;
  }
  std::string hint = fmt::format("; `sinter plan devices` lists all {}", all.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    if (!nearest.empty() && keys[i] == nearest) {
      hint += fmt::format("; did you mean '{}'?", owners[i]->name);
      break;
    }
  }
  base::fail_usage("unknown {} '{}'{}", what, name, hint);
}

int64_t parse_positive(std::string_view digits, const std::string& whole) {
  int64_t value = -1;
  auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size()) {
    base::fail_usage("cannot read the number '{}' in '{}'; expected a form like 64xA100-80GB", digits, whole);
  }
  if (value <= 0) base::fail_usage("'{}' asks for {} devices; the least is 1 (for example 1xH100)", whole, value);
  if (value > 10'000'000) base::fail_usage("'{}' asks for {} devices; the most is 10,000,000", whole, value);
  return value;
}

}  // namespace

std::string_view format_name(MatrixFormat format) { return kFormatNames[static_cast<size_t>(format)]; }

MatrixFormat parse_format(std::string_view text) {
  static constexpr std::pair<std::string_view, MatrixFormat> kOther[] = {
      {"double", MatrixFormat::fp64},   {"float64", MatrixFormat::fp64}, {"f64", MatrixFormat::fp64},
      {"float", MatrixFormat::fp32},    {"float32", MatrixFormat::fp32}, {"f32", MatrixFormat::fp32},
      {"half", MatrixFormat::fp16},     {"float16", MatrixFormat::fp16}, {"f16", MatrixFormat::fp16},
      {"bfloat16", MatrixFormat::bf16}, {"float8", MatrixFormat::fp8},   {"e4m3", MatrixFormat::fp8},
      {"mxfp8", MatrixFormat::fp8},     {"nvfp4", MatrixFormat::fp4},    {"mxfp4", MatrixFormat::fp4},
      {"mxfp6", MatrixFormat::fp6},     {"i8", MatrixFormat::int8},      {"q8", MatrixFormat::int8},
      {"i4", MatrixFormat::int4},       {"q4", MatrixFormat::int4}};
  std::vector<std::string> names;
  for (int i = 0; i < kNumFormats; ++i) {
    if (text == kFormatNames[static_cast<size_t>(i)]) return static_cast<MatrixFormat>(i);
    names.emplace_back(kFormatNames[static_cast<size_t>(i)]);
  }
  for (auto [name, format] : kOther) {
    if (text == name) return format;
  }
  base::fail_usage("unknown number format '{}'; known: {}{}", text, fmt::join(names, ", "),
                   base::did_you_mean(text, names));
}

double format_bytes_per_element(MatrixFormat format) {
  switch (format) {
    case MatrixFormat::fp64:
      return 8;
    case MatrixFormat::fp32:
    case MatrixFormat::tf32:
      return 4;
    case MatrixFormat::fp16:
    case MatrixFormat::bf16:
      return 2;
    case MatrixFormat::fp8:
    case MatrixFormat::int8:
      return 1;
    case MatrixFormat::fp6:
      return 0.75;
    case MatrixFormat::fp4:
    case MatrixFormat::int4:
      return 0.5;
  }
  return 0;
}

double EfficiencyCurve::at(double size, double otherwise) const {
  if (points.empty()) return otherwise;
  if (!(size > points.front().first)) return points.front().second;
  for (size_t i = 1; i < points.size(); ++i) {
    if (size >= points[i].first) continue;
    auto [x0, y0] = points[i - 1];
    auto [x1, y1] = points[i];
    return y0 + (y1 - y0) * (std::log(size) - std::log(x0)) / (std::log(x1) - std::log(x0));
  }
  return points.back().second;
}

MatrixFormat DeviceSpec::compute_format(MatrixFormat format) const {
  // Widening order per format: what the operands may be turned into without losing values.
  auto first_with_unit = [&](std::initializer_list<MatrixFormat> candidates) -> MatrixFormat {
    for (MatrixFormat f : candidates) {
      if (peak(f) > 0) return f;
    }
    base::fail("device '{}' has no rate for {} or any wider format in the hardware table", name, format_name(format));
  };
  using enum MatrixFormat;
  switch (format) {
    case int4:
      return first_with_unit({int4, int8, bf16, fp16, fp32});
    case int8:
      return first_with_unit({int8, bf16, fp16, fp32});
    case fp4:
      return first_with_unit({fp4, fp6, fp8, bf16, fp16, fp32});
    case fp6:
      return first_with_unit({fp6, fp8, bf16, fp16, fp32});
    case fp8:
      return first_with_unit({fp8, bf16, fp16, fp32});
    case bf16:
      return first_with_unit({bf16, fp32, fp16});  // no bf16 unit: fp32 keeps its range
    case fp16:
      return first_with_unit({fp16, bf16, fp32});
    case tf32:
      return first_with_unit({tf32, fp32, bf16});
    case fp32:
      return first_with_unit({fp32, bf16});
    case fp64:
      return first_with_unit({fp64});
  }
  return format;
}

double DeviceSpec::compute_rate(MatrixFormat format) const { return peak(compute_format(format)); }

TrainBackend DeviceSpec::backend() const {
  auto is = [&](std::string_view word) { return vendor.find(word) != std::string::npos; };
  if (is("CPU") || vendor == "measured") return TrainBackend::cpu;
  return vendor.empty() || is("NVIDIA") ? TrainBackend::cuda : TrainBackend::none;
}

bool DeviceSpec::has_fast_link() const {
  return link_bandwidth > 0 && !link.starts_with("PCIe") && link_bandwidth > 1.5 * std::min(pcie_bandwidth, 63e9);
}

const DeviceSpec& HardwareTable::device(std::string_view name) const { return find_by_name(devices, name, "device"); }
const Network& HardwareTable::network(std::string_view name) const { return find_by_name(networks, name, "network"); }

std::string user_hardware_path() {
  if (const char* path = std::getenv("SINTER_HARDWARE"); path && *path) return path;
  const char* config = std::getenv("XDG_CONFIG_HOME");
  const char* home = std::getenv("HOME");
  if (config && *config) return std::string(config) + "/sinter/hardware.toml";
  return std::string(home ? home : ".") + "/.config/sinter/hardware.toml";
}

namespace {

bool is_device(const HardwareTable& table, const std::string& text) {
  return std::any_of(table.devices.begin(), table.devices.end(), [&](const DeviceSpec& d) {
    auto is_meant = [&](const std::string& name) { return plain(name) == plain(text); };
    return is_meant(d.name) || std::any_of(d.aliases.begin(), d.aliases.end(), is_meant);
  });
}

}  // namespace

Cluster parse_cluster(const HardwareTable& table, const std::string& text) {
  if (text.ends_with(".toml")) return load_cluster(table, text);
  std::vector<std::string> parts;  // "4x8xH100": leading numbers, then the name (which may itself hold an x: "MI300X")
  size_t begin = 0;
  while (parts.size() < 2) {
    size_t end = begin;
    while (end < text.size() && (std::isdigit(static_cast<unsigned char>(text[end])) || text[end] == ' ' ||
                                 (end == begin && text[end] == '-'))) {
      ++end;
    }
    if (end == begin || end >= text.size() || (text[end] != 'x' && text[end] != '*' && text[end] != 'X')) break;
    std::string digits = text.substr(begin, end - begin);
    std::erase(digits, ' ');
    if (digits.empty()) break;
    parts.push_back(digits);
    begin = end + 1;
  }
  std::string name = text.substr(begin);
  while (!name.empty() && name.front() == ' ') name.erase(0, 1);
  const bool is_number = std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isdigit(c); });
  if (name.empty() || (is_number && name.size() < 4))
    base::fail_usage("'{}' names no device; expected a form like 64xA100-80GB", text);
  if (const size_t x = name.find_last_of("xX*");
      parts.empty() && x != std::string::npos && x > 0 && x + 1 < name.size() && is_device(table, name.substr(0, x)))
    base::fail_usage("'{}': the number comes first, {}x{}", text, name.substr(x + 1), name.substr(0, x));
  Cluster cluster;
  std::vector<int64_t> counts;
  for (const std::string& digits : parts) counts.push_back(parse_positive(digits, text));
  cluster.device = table.device(name);
  cluster.network = table.network(cluster.device.network);
  cluster.price_per_hour = cluster.device.price_per_hour;
  cluster.per_node = cluster.device.per_node;
  cluster.rails = cluster.device.rails;
  if (counts.size() == 2) {
    cluster.num_devices = counts[0] * counts[1];
    cluster.rails = std::max<int>(1, static_cast<int>(cluster.rails * counts[1] / cluster.per_node));
    cluster.per_node = static_cast<int>(counts[1]);
  } else {
    cluster.num_devices = counts.empty() ? 1 : counts[0];
  }
  return cluster;
}

}  // namespace sinter::plan

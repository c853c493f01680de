// `sinter plan --measure`: this machine as a device, fitted by short benchmarks and held against other steps.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "bench/measure_device.h"
#include "cli/command.h"
#include "cli/plan/machine_use.h"
#include "cli/plan/plan.h"
#include "cli/plan/verbs.h"

namespace sinter::cli {
void save_device(const plan::DeviceSpec& device, const std::string& path) {
  std::string text;
  if (std::filesystem::exists(path)) {
    text = base::read_file(path);
    plan::HardwareTable own;
    own.add_toml(text, path);
    const auto same = [&](const plan::DeviceSpec& d) { return d.name == device.name; };
    if (std::any_of(own.devices.begin(), own.devices.end(), same)) {  // write the file's other entries anew
      if (!own.networks.empty())
        base::fail("'{}' has networks and a device '{}' already; remove that device, or choose another --name", path,
                   device.name);
      std::erase_if(own.devices, same);
      text.clear();
      for (const plan::DeviceSpec& d : own.devices) text += plan::device_toml(d) + "\n";
    }
  }
  if (!text.empty() && text.back() != '\n') text += '\n';
  text += plan::device_toml(device);
  std::filesystem::create_directories(std::filesystem::absolute(path).parent_path());
  base::write_file_atomic(path, text);
}

namespace {

plan::DeviceSpec saved_device(const std::string& name, const std::string& path) {
  const char* advice = "leave out --check-only (`sinter plan --measure`) to measure and save it first";
  if (!std::filesystem::exists(path))
    base::fail_usage("--check-only: there is no hardware file '{}' with a device '{}'; {}", path, name, advice);
  try {
    return plan::load_hardware(path).device(name);
  } catch (const base::UsageError&) {
    base::fail_usage("--check-only: '{}' has no device '{}'; {}", path, name, advice);
  }
}

}  // namespace

void add_measure_options(Command plan, MeasureOptions& o) {
  plan.option("--name", &o.name, "with --measure: name of the measured device").shows_default();
  plan.option("--device", &o.device, "with --measure: what to measure, cpu or cuda").shows_default();
  plan.option("--seconds", &o.seconds, "with --measure: seconds spent on each training step; the best run counts")
      .shows_default()
      .in_range(0.1, 600.0);
  plan.flag("--force", &o.force, "with --measure: save the device even when the machine was not quiet");
  plan.flag("--check-only", &o.check_only, "with --measure: fit nothing, hold the saved device against measured steps");
}

void run_measure(const MeasureOptions& o, const std::string& hardware, bool as_json) {
  const std::string path = hardware.empty() ? plan::user_hardware_path() : hardware;
  const core::Device device = core::parse_device(o.device);
  core::runtime(device);  // an absent device is an error before anything is measured
  const MachineUse use;
  bench::Options options;
  options.case_seconds = o.seconds / 5;
  plan::DeviceSpec measured;
  bench::Report report = bench::make_step_report(device);
  if (o.check_only) {
    measured = saved_device(o.name, path);
  } else {
    if (!as_json) {
      fmt::print("Measuring {}; this takes a minute or two.\n", device.to_string());
      std::fflush(stdout);
    }
    measured = bench::measure_device(o.name, device, options, report);
  }
  bench::check_measured_device(measured, device, options, report);
  const double drift = o.check_only ? 0 : bench::measure_drift(device, options, report);
  const double others = device.kind == core::DeviceKind::cpu ? use.share_of_others() : 0;
  const std::string problem = why_not_quiet(drift, others);
  const bool saves = !o.check_only && (problem.empty() || o.force);
  if (saves) save_device(measured, path);
  if (as_json)
    return print_json({{"file", path},
                       {"saved", saves},
                       {"device", plan::device_toml(measured)},
                       {"steps", report.to_json()},
                       {"drift", drift},
                       {"share_of_others", others}});
  fmt::print("\n{}\n", report.to_text());
  if (!problem.empty())
    fmt::print("{}{}.\n\n", problem,
               saves || o.check_only ? "" : ", so nothing was saved; measure again, or say --force");
  if (saves)
    fmt::print("{}\nSaved in {}. Use it: sinter plan gpt2 --gpus {}\n", plan::device_toml(measured), path, o.name);
}

}  // namespace sinter::cli

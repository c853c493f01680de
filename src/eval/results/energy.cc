#include "eval/results/energy.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace sinter::eval {
namespace {

namespace fs = std::filesystem;

constexpr double kGramsPerKilowattHour = 445;  // of CO2, the world's mean mix (IEA, 2024)

std::optional<double> read_number(const std::string& path) {
  std::ifstream file(path);
  double value = 0;
  return file >> value ? std::optional(value) : std::nullopt;
}

// CUDA's n-th device as NVML counts them.
unsigned nvml_index(int gpu) {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  for (std::string rest = visible ? visible : ""; !rest.empty() && gpu >= 0; --gpu) {
    const size_t comma = rest.find(',');
    if (gpu == 0) return static_cast<unsigned>(std::atoi(rest.c_str()));
    rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
  }
  return static_cast<unsigned>(gpu > 0 ? gpu : 0);
}

}  // namespace

std::optional<double> Energy::joules() const {
  if (!cpu_joules && !gpu_joules) return std::nullopt;
  return cpu_joules.value_or(0) + gpu_joules.value_or(0);
}
double Energy::co2_grams() const { return joules().value_or(0) / 3.6e6 * kGramsPerKilowattHour; }
std::string Energy::source() const {
  std::string text = cpu_joules ? "RAPL (processor packages)" : "";
  if (gpu_joules) text += std::string(text.empty() ? "" : ", ") + "NVML (GPU)";
  return text;
}

EnergyMeter::EnergyMeter(int gpu) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/sys/class/powercap", error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("intel-rapl:") || name.find(':', 11) != std::string::npos) continue;  // packages only
    const std::string path = (entry.path() / "energy_uj").string();
    const auto start = read_number(path);
    if (start)
      counters_.push_back({path, *start, read_number((entry.path() / "max_energy_range_uj").string()).value_or(0)});
  }
  if (gpu < 0) return;
  library_ = ::dlopen("libnvidia-ml.so.1", RTLD_NOW);
  if (!library_) return;
  const auto init = reinterpret_cast<int (*)()>(::dlsym(library_, "nvmlInit_v2"));
  const auto find = reinterpret_cast<int (*)(unsigned, void**)>(::dlsym(library_, "nvmlDeviceGetHandleByIndex_v2"));
  if (!init || !find || init() != 0 || find(nvml_index(gpu), &device_) != 0) device_ = nullptr;
  gpu_start_ = gpu_millijoules().value_or(0);
}

EnergyMeter::~EnergyMeter() {
  if (!library_) return;
  if (const auto end = reinterpret_cast<int (*)()>(::dlsym(library_, "nvmlShutdown"))) end();
  ::dlclose(library_);
}

std::optional<double> EnergyMeter::gpu_millijoules() const {
  if (!device_) return std::nullopt;
  using Read = int (*)(void*, unsigned long long*);
  const auto read = reinterpret_cast<Read>(::dlsym(library_, "nvmlDeviceGetTotalEnergyConsumption"));
  unsigned long long millijoules = 0;
  if (!read || read(device_, &millijoules) != 0) return std::nullopt;
  return static_cast<double>(millijoules);
}

Energy EnergyMeter::read() const {
  Energy energy;
  for (const Counter& counter : counters_) {
    const double now = read_number(counter.path).value_or(counter.start);
    const double used = now >= counter.start ? now - counter.start : now + counter.range - counter.start;
    energy.cpu_joules = energy.cpu_joules.value_or(0) + used * 1e-6;
  }
  if (const auto now = gpu_millijoules()) energy.gpu_joules = (*now - gpu_start_) * 1e-3;
  return energy;
}

}  // namespace sinter::eval

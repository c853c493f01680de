// Energy of a run, as far as the machine tells: the processor's packages (RAPL) and the GPU (NVML).
#pragma once
#include <optional>
#include <string>
#include <vector>

namespace sinter::eval {

struct Energy {
  std::optional<double> cpu_joules, gpu_joules;
  std::optional<double> joules() const;  // of what is known
  double co2_grams() const;              // of the same, by the world's mean mix
  std::string source() const;            // "RAPL (processor packages), NVML (GPU)"
};

class EnergyMeter {
 public:
  // `gpu`: the device's number as CUDA counts them; below 0 = none. What is not there is not counted.
  explicit EnergyMeter(int gpu = -1);
  ~EnergyMeter();
  EnergyMeter(const EnergyMeter&) = delete;
  EnergyMeter& operator=(const EnergyMeter&) = delete;
  // Since it was made.
  Energy read() const;

 private:
  struct Counter {
    std::string path;
    double start, range;  // in microjoules; range: where it begins again at 0
  };
  std::optional<double> gpu_millijoules() const;
  std::vector<Counter> counters_;
  void* library_ = nullptr;  // libnvidia-ml
  void* device_ = nullptr;
  double gpu_start_ = 0;
};

}  // namespace sinter::eval

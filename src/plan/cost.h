// What a run costs: device hours, days, money, staff, energy, carbon; and what checkpoints and failures take from it.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace sinter::plan {

struct CostInput {
  double gpu_hours = 0;
  double num_devices = 1;
  double price_per_hour = 0;   // per device
  double staff = 0;            // people
  double salary_per_year = 0;  // per person
  double staff_years = 1;
  double power_watts = 0;  // per device
  double pue = 1;          // power of the building over power of the devices
  double kg_co2_per_kwh = 0;
};
struct RunCost {
  double gpu_hours = 0, days = 0;
  double device_money = 0, staff_money = 0, money = 0;
  double energy_kwh = 0, co2_tonnes = 0;
};
// Throws UsageError naming the field that is negative or zero where it may not be.
RunCost run_cost(const CostInput& input);

// Device hours of `flops` at `flops_per_second` on each device.
double gpu_hours_for(double flops, double flops_per_second);

// Carbon of a kilowatt-hour by name: "world", "us", "eu", "france", and those of published runs. Assumptions.
struct GridIntensity {
  std::string_view name;
  double kg_co2_per_kwh;
  std::string_view source;
};
const std::vector<GridIntensity>& grid_intensities();
// A name above or a number in kg/kWh. Throws UsageError naming the nearest.
double parse_grid(const std::string& text);

// Checkpoints every sqrt(2 t_write MTBF) (Young) and what failures leave of the time.
struct Reliability {
  double cluster_mtbf_s = 0;  // of all devices together
  double write_s = 0, load_s = 0;
  double interval_s = 0;  // best time between checkpoints
  double goodput = 1;     // share of the time that makes progress
};
// `device_mtbf_hours` 0: the figure of Llama 3's run (466 interruptions in 54 days on 16,384 devices).
Reliability plan_reliability(double num_devices, double checkpoint_bytes, double write_bandwidth, double read_bandwidth,
                             double device_mtbf_hours, double restart_s = 300);
inline constexpr double kLlama3DeviceMtbfHours = 54.0 * 24 * 16384 / 466;
// bf16 weights and the fp32 master, first and second moments.
inline constexpr double kCheckpointBytesPerParameter = 14;

}  // namespace sinter::plan

#include "plan/cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/error.h"
#include "base/text.h"

namespace sinter::plan {
namespace {

void check_not_negative(double value, const char* what) {
  if (!(value >= 0) || !std::isfinite(value)) base::fail_usage("{} is {}; expected 0 or more", what, value);
}

}  // namespace

RunCost run_cost(const CostInput& in) {
  check_not_negative(in.gpu_hours, "GPU hours");
  check_not_negative(in.price_per_hour, "price per hour");
  check_not_negative(in.staff, "staff");
  check_not_negative(in.salary_per_year, "salary");
  check_not_negative(in.power_watts, "power");
  check_not_negative(in.kg_co2_per_kwh, "carbon intensity");
  if (!(in.num_devices >= 1)) base::fail_usage("{} devices; the least is 1", in.num_devices);
  if (!(in.pue >= 1))
    base::fail_usage("PUE is {}; it is at least 1 (power of the building over power of the devices)", in.pue);
  RunCost out;
  out.gpu_hours = in.gpu_hours;
  out.days = in.gpu_hours / in.num_devices / 24;
  out.device_money = in.gpu_hours * in.price_per_hour;
  out.staff_money = in.staff * in.salary_per_year * in.staff_years;
  out.money = out.device_money + out.staff_money;
  out.energy_kwh = in.gpu_hours * in.power_watts / 1000 * in.pue;
  out.co2_tonnes = out.energy_kwh * in.kg_co2_per_kwh / 1000;
  return out;
}

double gpu_hours_for(double flops, double flops_per_second) {
  if (!(flops_per_second > 0)) base::fail_usage("a rate of {} FLOP/s; expected more than 0", flops_per_second);
  return flops / flops_per_second / 3600;
}

const std::vector<GridIntensity>& grid_intensities() {
  static const std::vector<GridIntensity> grids{
      {"world", 0.48, "world average, rounded"},
      {"us", 0.385, "US average used by the LLaMA 1 paper"},
      {"eu", 0.24, "EU average, rounded"},
      {"france", 0.056, "France, rounded"},
      {"llama-2", 0.4235, "implied by Llama 2's table"},
      {"llama-3.1", 0.4137, "implied by Llama 3.1's 405B row"},
  };
  return grids;
}

double parse_grid(const std::string& text) {
  std::vector<std::string> names;
  for (const GridIntensity& grid : grid_intensities()) {
    if (grid.name == text) return grid.kg_co2_per_kwh;
    names.emplace_back(grid.name);
  }
  char* end = nullptr;
  double value = std::strtod(text.c_str(), &end);
  if (end != text.c_str() && *end == 0) {
    if (std::isfinite(value) && value >= 0) return value;
    base::fail_usage("--grid: {} given; expected a finite number of kg CO2 per kWh, the least is 0", text);
  }
  base::fail_usage("unknown grid '{}'; expected kg CO2 per kWh or one of {}{}", text, fmt::join(names, ", "),
                   base::did_you_mean(text, names));
}

Reliability plan_reliability(double num_devices, double checkpoint_bytes, double write_bandwidth, double read_bandwidth,
                             double device_mtbf_hours, double restart_s) {
  Reliability r;
  r.cluster_mtbf_s = (device_mtbf_hours > 0 ? device_mtbf_hours : kLlama3DeviceMtbfHours) * 3600 / num_devices;
  r.write_s = write_bandwidth > 0 ? checkpoint_bytes / write_bandwidth : 0;
  r.load_s = read_bandwidth > 0 ? checkpoint_bytes / read_bandwidth : 0;
  r.interval_s = std::sqrt(2 * r.write_s * r.cluster_mtbf_s);
  double lost = (restart_s + r.load_s) / r.cluster_mtbf_s;
  if (r.interval_s > 0) lost += r.write_s / r.interval_s + r.interval_s / 2 / r.cluster_mtbf_s;
  r.goodput = std::max(0.0, 1 - lost);
  return r;
}

}  // namespace sinter::plan

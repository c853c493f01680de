#include "cli/plan/machine_use.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

namespace sinter::cli {
namespace {

struct Ticks {
  double all = 0, idle = 0;
};

// "cpu  user nice system idle iowait irq softirq steal ...": what a guest has is in user already.
Ticks read_ticks(std::string_view line) {
  std::istringstream words{std::string(line)};
  std::string name;
  Ticks ticks;
  if (!(words >> name) || name != "cpu") return ticks;
  double value = 0;
  for (int i = 0; i < 8 && words >> value; ++i) {
    ticks.all += value;
    if (i == 3 || i == 4) ticks.idle += value;
  }
  return ticks;
}

std::string stat_line() {
  std::string line;
  std::getline(std::ifstream("/proc/stat") >> std::ws, line);
  return line;
}

double own_ticks() {
  rusage use{};
  ::getrusage(RUSAGE_SELF, &use);
  const auto seconds = [](const timeval& t) { return double(t.tv_sec) + 1e-6 * double(t.tv_usec); };
  return (seconds(use.ru_utime) + seconds(use.ru_stime)) * double(::sysconf(_SC_CLK_TCK));
}

}  // namespace

double share_of_others(std::string_view before, std::string_view after, double own) {
  const Ticks a = read_ticks(before), b = read_ticks(after);
  const double all = b.all - a.all, busy = all - (b.idle - a.idle);
  return all > 0 ? std::clamp((busy - own) / all, 0.0, 1.0) : 0;
}

MachineUse::MachineUse() : before_(stat_line()), own_before_(own_ticks()) {}

double MachineUse::share_of_others() const {
  if (::sched_getscheduler(0) != SCHED_OTHER) return 0;  // real-time priority: the others only had what was left
  return cli::share_of_others(before_, stat_line(), own_ticks() - own_before_);
}

std::string why_not_quiet(double drift, double others) {
  constexpr double kMostDrift = 0.07, kMostOthers = 0.1;
  if (others > kMostOthers)
    return fmt::format("Other programs had {:.0f} % of the machine's CPU time meanwhile: it is not quiet",
                       100 * others);
  if (std::abs(drift) > kMostDrift)
    return fmt::format("The machine ran {:.0f} % {} at the end than at the beginning: it is not quiet",
                       100 * std::abs(drift), drift > 0 ? "slower" : "faster");
  return "";
}

}  // namespace sinter::cli

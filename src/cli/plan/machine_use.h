// Whether a measurement had the machine to itself.
#pragma once
#include <string>
#include <string_view>

namespace sinter::cli {

// The share of the machine's CPU time that other processes had between two readings of the first line of /proc/stat, of
// which `own_ticks` were ours. 0 for lines of another form.
double share_of_others(std::string_view before, std::string_view after, double own_ticks);

class MachineUse {
 public:
  MachineUse();
  double share_of_others() const;  // since it was made; 0 where the system does not tell

 private:
  std::string before_;
  double own_before_ = 0;
};

// Why figures are not to be trusted: a sentence without its end, "" where they are. `drift`: how much slower the same
// work was at the end.
std::string why_not_quiet(double drift, double others);

}  // namespace sinter::cli

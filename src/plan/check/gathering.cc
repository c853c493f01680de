// What a nanotron row's memory tells of a setting its columns leave out.
#include <cmath>

#include "plan/check/points.h"
#include "plan/memory.h"

namespace sinter::plan {

void infer_gathering(CheckRow& row) {
  double measured = 0;
  for (const char* key : {"memory_gib", "memory_gb"}) {
    if (auto found = row.measured.find(key); found != row.measured.end()) measured = found->second * 1073741824.0;
  }
  const spec::ParallelSpec& p = row.parallel;
  if (p.tp == 1 || measured <= 0 || !row.model || p.micro_batches() < 1) return;
  Software kept = find_software("nanotron-kept"), again = kept;
  again.keeps_gathered = false;
  const double more = plan_stage_memory(*row.model, p, kept, 0).device.total();
  const double less = plan_stage_memory(*row.model, p, again, 0).device.total();
  if (more - less < 0.15 * measured) return;
  const bool is_kept = std::abs(std::log(measured / more)) < std::abs(std::log(measured / less));
  row.timed_software = is_kept ? kept.name : "nanotron-again";
}

}  // namespace sinter::plan

#include "models/segments.h"

#include <algorithm>
#include <map>

namespace sinter::models {

int64_t place_in_slots(std::vector<Segment>& segments, const Division& division) {
  std::map<int64_t, int64_t> sizes;  // of units, in order
  for (const Segment& s : segments) {
    if (s.is_divided) sizes[s.unit] += s.count();
  }
  auto stays = [&](int64_t unit) { return division.keeps_ends && (unit < 0 || unit == division.head_layer); };
  int64_t shared = 0, before = 0;
  for (const auto& [unit, size] : sizes) {
    if (stays(unit)) continue;
    shared = std::max(shared, before + size);
    before = size;
  }
  int64_t kept = shared, number = 0;
  std::map<int64_t, int64_t> next;
  for (const auto& [unit, size] : sizes) {
    if (stays(unit)) {
      next[unit] = kept;
      kept += size;
    } else {
      next[unit] = number++ % 2 == 0 ? 0 : shared - size;
    }
  }
  for (Segment& s : segments) {
    if (!s.is_divided) continue;
    s.slot_at = next[s.unit];
    next[s.unit] += s.count();
  }
  return kept;
}

}  // namespace sinter::models

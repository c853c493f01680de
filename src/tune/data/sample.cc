#include "tune/data/sample.h"

namespace sinter::tune {

const char* role_name(Role role) {
  constexpr const char* kNames[] = {"markup", "system", "user", "assistant", "tool", "prompt", "completion"};
  return kNames[static_cast<size_t>(role)];
}

int64_t TokenSegments::num_supervised() const {
  int64_t count = 0;
  for (size_t i = 1; i < weights.size(); ++i) count += weights[i] != 0;
  return count;
}

void TokenSegments::append(const std::vector<int32_t>& more, Role role, float weight) {
  ids.insert(ids.end(), more.begin(), more.end());
  roles.insert(roles.end(), more.size(), role);
  weights.insert(weights.end(), more.size(), weight);
}

}  // namespace sinter::tune

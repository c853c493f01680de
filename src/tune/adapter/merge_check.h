// Whether a merged model says what its base with the adapter says.
#pragma once
#include <cstdint>
#include <string>

namespace sinter::tune {

struct MergeCheck {
  int64_t tokens = 0;
  double error = 0;      // largest difference of a logit, as a share of the largest logit
  int64_t same_top = 0;  // tokens after which both find the same next one likeliest
};
// Runs both over tokens drawn by their numbers, in f32 on the CPU: both models are in memory, one after the other.
MergeCheck check_merge(const std::string& base, const std::string& adapter, const std::string& merged);

}  // namespace sinter::tune

// The part of `sinter data preview` that shows rows for tuning as tokens.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cli/command.h"

namespace sinter::cli {

// Adds its options to the verb. What is returned shows `inputs`, the first `rows` of them, where --model was given, and
// says whether it was. Both pointers must live as long as the verb.
std::function<bool()> add_tuning_preview(const Command& verb, const std::vector<std::string>* inputs,
                                         const int64_t* rows);

}  // namespace sinter::cli

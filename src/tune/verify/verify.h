// Checks tuning against answers of PEFT, TRL, bitsandbytes and transformers (docs/tuning_data.md names the form of the
// folders): chat templates and masks, packing, losses and gradients of every objective.
#pragma once
#include <string>
#include <vector>

#include "eval/verify.h"

namespace sinter::tune {

struct TuneCase {
  std::string kind, folder;  // "chat-template", "preference-pairs", ...
};
// Every case.json of a known kind in a folder or below it, in order of path; empty for a folder of another form.
std::vector<TuneCase> find_tune_cases(const std::string& folder);
// Throws base::Error when a file of the case cannot be read.
std::vector<eval::VerifyCheck> verify_tune_case(const TuneCase& which, const eval::VerifyOptions& options);

}  // namespace sinter::tune

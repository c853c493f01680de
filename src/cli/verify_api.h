// Requests that lm-evaluation-harness sent to a server, with that server's answers and what the harness read from them
// (api/*.json of a folder of evaluation answers), asked of our own routes with the same model behind them.
#pragma once
#include <string>
#include <vector>

#include "eval/verify.h"

namespace sinter::cli {

// Empty where the folder has no api/. Throws base::Error when a file cannot be read or its model is not in the folder.
std::vector<eval::VerifyCheck> verify_api(const std::string& folder, const eval::VerifyOptions& options);

}  // namespace sinter::cli

// The page of a run: scores with their errors, and samples to look at. One file, nothing from elsewhere.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "eval/results/table.h"

namespace sinter::eval {

// `report`: make_report()'s.
std::string make_page(const std::vector<TaskRun>& runs, const ResultTable& table, const nlohmann::ordered_json& report);

}  // namespace sinter::eval

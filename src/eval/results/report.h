// What a run leaves: JSON in the layout of lm-evaluation-harness, samples as JSON lines, a page.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "eval/results/energy.h"
#include "eval/results/table.h"

namespace sinter::eval {

struct RunInfo {
  std::string model, model_hash, precision, device;
  double limit = 0, seconds = 0;
  int64_t bootstrap = 100000;
  bool applies_chat = false;
  ScorerStats stats;
  Energy energy;
};

// A name for the weights: of config.json and of the sizes and first bytes of the weight files.
std::string hash_model(const std::string& folder);

nlohmann::ordered_json make_report(const std::vector<TaskRun>& runs, const ResultTable& table, const TaskSet& set,
                                   const RunInfo& info);
// FOLDER/results.json, FOLDER/samples_TASK.jsonl and, with `has_page`, FOLDER/index.html; each whole or not at all.
void save_report(const std::string& folder, const nlohmann::ordered_json& report, const std::vector<TaskRun>& runs,
                 const ResultTable& table, bool has_page);
// A line on tokens, time and energy.
std::string footer(const RunInfo& info);

// Throws base::Error where a task that runs code may not, or cannot here.
void check_sandbox(const Task& task, bool is_allowed);

}  // namespace sinter::eval

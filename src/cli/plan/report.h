// The sections of `sinter plan MODEL --gpus ...`: text, JSON, explanation and the HTML page of one training plan.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/plan/plan.h"
#include "plan/training_plan.h"

namespace sinter::cli {

// Fit, time and money in a few lines; then memory, time and the run in full.
void print_answer(const plan::TrainingRequest& request, const plan::TrainingPlan& plan);
void print_training_plan(const plan::TrainingRequest& request, const plan::TrainingPlan& plan);
nlohmann::json training_plan_json(const plan::TrainingRequest& request, const plan::TrainingPlan& plan);
std::vector<ExplainedLine> explain_training_plan(const plan::TrainingRequest& request, const plan::TrainingPlan& plan);
// One self-contained page: memory by part against sequence length, layouts, time by cause, timeline.
std::string training_plan_html(const std::string& model, const plan::TrainingRequest& request,
                               const plan::TrainingPlan& plan);

}  // namespace sinter::cli

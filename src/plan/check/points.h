// Points in the form of planner_points.json, and the models such points name.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "plan/check/rows.h"
#include "spec/model_spec.h"

namespace sinter::plan {

// GPT with biases, LayerNorm, learned positions and a tied head, MLP four times as wide.
spec::ModelSpec gpt_spec(int64_t layers, int64_t hidden, int64_t heads, int64_t vocab, int64_t positions);

// What rows of a sweep share when they are alternatives: sweep, model, devices, sequence length, batch.
std::string sweep_group(const CheckRow& row);

// The nanotron sweep does not say whether a run kept its gathered tensor-parallel inputs (nanotron's
// tp_recompute_allgather), on which its time depends. Its memory does: the nearer of both predictions tells, where they
// are 15 % apart. Only the time is predicted with it; memory is compared as if nothing were known.
void infer_gathering(CheckRow& row);

// Public models by the names the sources use; nullopt when the name is not known.
std::optional<spec::ModelSpec> known_model(const std::string& name);

std::vector<CheckRow> load_points(const std::string& text, const std::string& path, const HardwareTable& hardware);

}  // namespace sinter::plan

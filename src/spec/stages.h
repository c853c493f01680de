// How runs and plans cut a model into the stages of a pipeline: by what its layers cost, with the head counted.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "spec/model_spec.h"
#include "spec/schedule.h"

namespace sinter::spec {

// Stages of layers that cost so much, the last with a head beside them: as even as possible, but that the last takes
// fewer where the costliest stage then costs less. Every stage has a layer where there are as many.
std::vector<LayerRange> stages_by_cost(std::span<const double> layers, double head, int64_t num_stages);
// The virtual stages of a model, by the products of its layers, its extra heads and its head.
std::vector<LayerRange> stages_of(const ModelSpec& spec, int64_t num_stages);

}  // namespace sinter::spec

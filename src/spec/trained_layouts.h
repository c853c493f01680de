// Which layouts `sinter train` runs today. The planner marks the others, recipes comment their keys out, runs refuse
// them.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "spec/parallel_spec.h"

namespace sinter::spec {

// The keys of [parallel] that a layout needs and `sinter train` does not run yet, as they would be written ("ep = 4");
// empty where it runs whole.
std::vector<std::string> untrained_keys(const ParallelSpec& layout);

// Why `sinter train` cannot run a layout all of whose keys it knows, with the nearest that it can; "" when it can.
std::string trained_problem(const ParallelSpec& layout, const ModelSpec& model);

// The layout on as many ranks that trains and differs least: in the axes' sizes by their ratios, then in ZeRO,
// schedule, offload and batch; the layout itself where it trains. Nothing where none does.
std::optional<ParallelSpec> nearest_layout(const ParallelSpec& layout, const ModelSpec& model);
// Throws base::Error saying why a layout does not train, and the nearest that does.
void check_trained(const ParallelSpec& layout, const ModelSpec& model);

// All keys of [parallel] that differ from their defaults, in order.
std::vector<std::string> layout_keys(const ParallelSpec& layout);

}  // namespace sinter::spec

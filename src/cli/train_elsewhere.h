// `sinter train RECIPE --dry-run --on CLUSTER`: what the recipe's own layout needs on machines that are not this one.
#pragma once
#include <string>

#include "plan/hardware.h"
#include "spec/recipe.h"

namespace sinter::cli {

// What products run in when a recipe trains in this precision.
plan::MatrixFormat format_of(base::DType precision);

// Prints memory, step time and the run on "8xH100" or a cluster file, by the planner's model of `sinter train`; neither
// data nor device nor launch are needed. Throws base::Error where it does not fit or cannot run, UsageError for another
// cluster.
void dry_run_on(const spec::Recipe& recipe, const std::string& cluster, bool as_json);

}  // namespace sinter::cli

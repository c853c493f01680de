// Random recipes: small models of every family with random shapes, packings, precisions and optimizers, valid by
// construction. What is drawn depends on (seed, index) only, so anyone can draw the same.
#pragma once
#include <cstdint>
#include <string>

#include "spec/recipe.h"

namespace sinter::eval {

struct DrawOptions {
  uint64_t seed = 1;
  uint64_t index = 0;          // which recipe of that seed
  std::string device = "cpu";  // fp8 is drawn for GPUs only
};

// Without data.sources, checkpoint.dir and train.device, which belong to a run.
spec::Recipe draw_recipe(const DrawOptions& options);

// Whether its samples come from two sources of other weights.
bool draws_two_sources(const spec::Recipe& recipe);

// One line for people: family, shape, packing, precision, optimizer.
std::string describe(const spec::Recipe& recipe);

// Random documents for a recipe, as a token shard at `path`.
void write_random_shard(const std::string& path, int64_t vocab_size, uint64_t seed);

}  // namespace sinter::eval

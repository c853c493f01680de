// Random recipes trained twice, by the fast kernels of a device and by the plain reference loops on the CPU, each in a
// process of its own: a crash is a finding, not the end. Then both generate from the model that the fast kernels
// trained.
#pragma once
#include <cstdint>
#include <string>

namespace sinter::eval {

struct RecipeComparison {
  uint64_t seed = 1, index = 0;
  std::string device = "cpu";
  std::string folder;  // an existing folder for recipes, shards and runs
};
struct RecipeOutcome {
  std::string what;                       // the recipe in a line
  std::string problem;                    // "" = losses, gradient norms and generated tokens agree
  double loss_error = 0, norm_error = 0;  // largest over the steps, relative; validation losses are among them
  double logprob_error = 0;               // of generated tokens, absolute
  double loss_limit = 0, norm_limit = 0, logprob_limit = 0;
};
RecipeOutcome compare_recipe(const RecipeComparison& comparison);

}  // namespace sinter::eval

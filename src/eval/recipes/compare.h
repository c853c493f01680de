// Random recipes trained twice, each in a process of its own: a crash is a finding, not the end. The CPU's fast kernels
// are compared with the plain reference loops, a GPU's with the CPU's fast ones, fp8 with the CPU's bf16. Then both
// generate from the model that the first one trained.
#pragma once
#include <cstdint>
#include <string>

namespace sinter::eval {

struct RecipeComparison {
  uint64_t seed = 1, index = 0;
  std::string device = "cpu";
  std::string folder;   // an existing folder for recipes, shards and runs
  int64_t threads = 0;  // of a child on the CPU; 0: as many as it finds
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

#include "spec/recipe_check.h"

#include <sstream>

#include "base/error.h"

namespace sinter::spec {
namespace {

// With a path the model is its folder's: a key that would change it is not to be passed over in silence.
void check_model_of_path(const Recipe& recipe, const std::string& origin) {
  Recipe plain = recipe;
  plain.model = {.path = recipe.model.path, .random = recipe.model.random, .mtp_weight = recipe.model.mtp_weight};
  std::istringstream given_lines(recipe_to_toml(recipe)), plain_lines(recipe_to_toml(plain));
  std::string given, expected;
  while (std::getline(given_lines, given) && std::getline(plain_lines, expected)) {
    SINTER_CHECK(given == expected,
                 "{}: model.{} is given, but with model.path the model is that of '{}/config.json'; remove the key, or "
                 "model.path for a model of your own",
                 origin, given, recipe.model.path);
  }
}

}  // namespace

void check_recipe(const Recipe& r, const std::string& origin) {
  SINTER_CHECK(r.model.path.empty() != r.model.family.empty(),
               "{}: [model] needs either path (a Hugging Face folder) or family (an architecture written out){}",
               origin, r.model.path.empty() ? "" : ", not both");
  if (!r.model.path.empty()) check_model_of_path(r, origin);
  SINTER_CHECK(r.train.steps > 0 || r.train.tokens > 0, "{}: [train] needs steps or tokens", origin);
  SINTER_CHECK(r.train.steps == 0 || r.train.tokens == 0, "{}: [train] has both steps and tokens; keep one", origin);
  SINTER_CHECK(!r.data.sources.empty(), "{}: [data] needs sources, a token shard or a text file", origin);
  SINTER_CHECK(!r.checkpoint.dir.empty(), "{}: checkpoint.dir is empty", origin);
  SINTER_CHECK((r.train.ramp_from_tokens > 0) == (r.train.ramp_steps > 0),
               "{}: a batch-size ramp needs both train.ramp_from_tokens and train.ramp_steps", origin);
  SINTER_CHECK(r.train.ramp_from_tokens <= r.train.batch_tokens || r.train.batch_tokens == 0,
               "{}: train.ramp_from_tokens is {}, above train.batch_tokens {}; a ramp begins with smaller batches",
               origin, r.train.ramp_from_tokens, r.train.batch_tokens);
  SINTER_CHECK(r.checkpoint.time_limit == 0 || r.checkpoint.time_limit > r.checkpoint.time_margin,
               "{}: checkpoint.time_limit is {} s, of which checkpoint.time_margin, {} s, is kept for the last "
               "checkpoint: no time is left to train; give it more, or less margin",
               origin, r.checkpoint.time_limit, r.checkpoint.time_margin);
}

}  // namespace sinter::spec

// Any bytes given to spec::parse_recipe either parse, and then write out and parse again, or throw base::Error.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "spec/recipe.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sinter;
  try {
    spec::Recipe recipe = spec::parse_recipe({reinterpret_cast<const char*>(data), size}, "fuzz");
    spec::parse_recipe(spec::recipe_to_toml(recipe), "again");
  } catch (const base::Error&) {
  }
  return 0;
}

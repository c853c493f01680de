// Recipes of the data pipeline.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "data/pipeline/recipe.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sinter;
  try {
    data::parse_pipeline(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz");
  } catch (const base::Error&) {
  }
  return 0;
}

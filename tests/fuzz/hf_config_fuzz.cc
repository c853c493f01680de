// Any bytes given as a config.json either make a model whose config, written out, makes the same one, or throw
// base::Error.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "base/json.h"
#include "spec/hf_config.h"
#include "spec/rope.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sinter;
  spec::ModelSpec model;
  try {
    model = spec::parse_hf_config(base::parse_json({reinterpret_cast<const char*>(data), size}, "fuzz"), "fuzz");
  } catch (const base::Error&) {
    return 0;
  }
  if (model.num_layers > 1000 || model.head_dim > 1000) return 0;  // right, but slow to write out
  const nlohmann::json written = spec::make_hf_config(model, "float32");
  if (spec::make_hf_config(spec::parse_hf_config(written, "written"), "float32") != written) std::abort();
  if (model.rope.kind == spec::RopeKind::none) return 0;
  for (float f : spec::rope_inv_freq(model.rope, model.head_dim, model.max_positions)) {
    if (!std::isfinite(f)) std::abort();
  }
  return 0;
}

#include "kernels/cpu/matmul/derived_parts.h"

#include <atomic>

namespace sinter::kernels::cpu {

DerivedParts* derived_parts(const core::WeightView& weight) {
  constexpr uint32_t kTurns = 8;
  if (!weight.derived) return nullptr;
  auto* kept = dynamic_cast<DerivedParts*>(weight.derived->get());
  if (!kept || kept->version != weight.version) {
    auto made = std::make_shared<DerivedParts>();
    made->version = weight.version;
    made->parts.resize(weight.blocks->parts.size());
    static std::atomic<uint32_t> next_turn{0};
    made->products_before = 1 + next_turn++ % kTurns;
    kept = made.get();
    *weight.derived = std::move(made);
  }
  if (kept->products_before == 0) return kept;
  --kept->products_before;
  return nullptr;
}

}  // namespace sinter::kernels::cpu

// What is derived from each part of a weight that is not plain, kept in WeightView::derived.
#pragma once
#include <memory>
#include <vector>

#include "core/weight_view.h"

namespace sinter::kernels::cpu {

// Copies are made after some products, in another one for each weight in turn: an answer from a model that has just
// been opened does not wait until all of it is copied.
struct DerivedParts final : core::DerivedWeight {
  std::vector<std::shared_ptr<core::DerivedWeight>> parts;
  uint32_t products_before = 0;  // that are still to come from where the weight lies
};

// Those of this version, made where there are none. Null where the weight keeps nothing, or for this product not yet.
// Not for two threads at once on one weight.
DerivedParts* derived_parts(const core::WeightView& weight);

}  // namespace sinter::kernels::cpu

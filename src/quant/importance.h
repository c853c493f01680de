// The importance of each column of each weight: the mean square of what it is multiplied by, over a calibration text.
#pragma once
#include <functional>
#include <vector>

#include "models/open_model.h"
#include "quant/quantize.h"

namespace sinter::quant {

// Runs the model on windows of the text. `prefix_token` begins each; -1: none. `on_progress` gets (tokens done, in
// all). Experts that no token came to get the mean of the others.
Importance measure_importance(const models::OpenModel& model, const std::vector<int32_t>& tokens, int32_t prefix_token,
                              const std::function<void(int64_t, int64_t)>& on_progress = {});

// Called with every product of a forward pass: the weight's number among `names`' order of the store's slots, the rows
// it is multiplied by, and for experts the ends of their groups of rows.
struct ObservedProduct {
  const models::ParameterStore::Slot* slot = nullptr;
  core::Tensor rows;           // (T, K)
  core::Tensor group_offsets;  // (E + 1) i32, or empty
};
// A kernel table that calls `observer` before every product with a weight of the store, and does the work of `table`.
// One at a time, and only on the CPU.
class ObservedKernels {
 public:
  ObservedKernels(const kernels::KernelTable& table, models::ParameterStore& store,
                  std::function<void(const ObservedProduct&)> observer);
  ~ObservedKernels();
  ObservedKernels(const ObservedKernels&) = delete;
  ObservedKernels& operator=(const ObservedKernels&) = delete;
  const kernels::KernelTable& table() const { return *table_; }

 private:
  std::unique_ptr<kernels::KernelTable> table_;
};

}  // namespace sinter::quant

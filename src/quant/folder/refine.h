// The last step of rounding: codes and scales that lower the error of a layer's outputs, from those that are there.
#pragma once
#include <vector>

#include "quant/folder/integer_weight.h"

namespace sinter::quant {

// With d = (numbers of `rounded`) - w, the error of a row is d (H + damping) d^T. Each code in turn, and the scale of
// each group, becomes what makes it least while all others stay, a few rounds over: it never grows. Zero points and
// groups stay. Groups of more than kMostGroup columns keep their scales. Returns the error of each row.
std::vector<double> refine(const std::vector<float>& w, const RoundingInputs& inputs, const IntegerForm& form,
                           IntegerWeight& rounded);

inline constexpr int64_t kMostGroup = 1024;

}  // namespace sinter::quant

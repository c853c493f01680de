// Trains a random layout on ranks of this launch and the same recipe on one, and compares: first weights bit for bit,
// first gradients, losses and norms of every step, final weights.
#pragma once
#include "comm/communicator.h"
#include "eval/layouts/draw.h"

namespace sinter::eval {

struct LayoutOutcome {
  double loss_error = 0, norm_error = 0;  // relative, worst of all steps
  double gradient_error = 0;              // of the first step: beside the largest of each tensor
  double parameter_error = 0;             // largest difference of a final weight
  bool is_exact = false;                  // sums in the order of one rank: the first gradients must be the same bits
  double loss_limit = 0, gradient_limit = 0, first_norm_limit = 0, norm_limit = 0, parameter_limit = 0;
  std::string problem;  // "" when all is within its limit
};

// Collective over `world`. folder: the same on all ranks, for data and runs; removed when nothing is wrong. The outcome
// is rank 0's.
LayoutOutcome compare_layout(const LayoutCase& c, comm::Communicator& world, const std::string& folder);

}  // namespace sinter::eval

// Who this process is among those launched together, as the launcher's environment says.
#pragma once
#include <string>

#include "core/device.h"

namespace sinter::comm {

struct Launch {
  std::string launcher = "none";  // "Open MPI", "PMI", "Slurm", "torchrun"
  int rank = 0, ranks = 1;
  int local_rank = 0, local_ranks = 1;  // on this machine
};

// Reads the variables of Open MPI, PMI (Hydra, Intel MPI), Slurm's srun and torchrun, in this order; one rank when
// there are none. Throws base::Error naming a variable that is no count, or a rank outside its range.
Launch read_launch();
const Launch& launch();  // the same, read once

// Tasks of node `node` in Slurm's short form: "2(x3),1" is 2, 2, 2, 1. 0 when the text does not say.
int slurm_tasks_of_node(const std::string& tasks_per_node, int node);

// "cuda" is the GPU of this local rank, counted around where there are fewer GPUs than ranks; "cuda:1" and "cpu" are
// themselves.
core::Device local_device(const std::string& text, const Launch& launch);

}  // namespace sinter::comm

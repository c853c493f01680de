#include "comm/communicator.h"

#include <cstdlib>
#include <initializer_list>
#include <string>

#include "base/error.h"

namespace sinter::comm {

double Communicator::sum(double value) {
  all_reduce(std::span(&value, 1), ReduceOp::sum);
  return value;
}

int64_t Communicator::sum(int64_t value) {
  all_reduce(std::span(&value, 1), ReduceOp::sum);
  return value;
}

int64_t Communicator::max(int64_t value) {
  all_reduce(std::span(&value, 1), ReduceOp::max);
  return value;
}

std::string Communicator::broadcast_text(std::string text) {
  auto length = static_cast<int64_t>(text.size());
  broadcast(std::as_writable_bytes(std::span(&length, 1)), 0);
  text.resize(static_cast<size_t>(length));
  broadcast(std::as_writable_bytes(std::span(text)), 0);
  return text;
}

namespace {

// The first of these variables that is set, as a number of ranks; 1 when none is.
int ranks_in_environment(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const char* text = std::getenv(name);
    if (!text || !*text) continue;
    char* end = nullptr;
    long ranks = std::strtol(text, &end, 10);
    SINTER_CHECK(*end == 0 && ranks >= 1 && ranks <= 1 << 24, "{} is '{}'; expected a number of ranks", name, text);
    return static_cast<int>(ranks);
  }
  return 1;
}

}  // namespace

int launched_ranks() {
  // Slurm sets SLURM_NTASKS for batch scripts too; only inside srun is SLURM_STEP_NUM_TASKS this program's own.
  return ranks_in_environment({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_SIZE", "SLURM_STEP_NUM_TASKS"});
}

int launched_local_ranks() { return ranks_in_environment({"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"}); }

Communicator& world() {
  static const std::unique_ptr<Communicator> instance = [] {
    const int ranks = launched_ranks();
    if (ranks == 1) return make_self();
    SINTER_CHECK(has_mpi(),
                 "launched with {} ranks, but this sinter was built without MPI; build it where MPI is found", ranks);
    return make_mpi();
  }();
  return *instance;
}

}  // namespace sinter::comm

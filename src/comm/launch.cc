#include "comm/launch.h"

#include <cstdlib>
#include <optional>

#include "base/error.h"

namespace sinter::comm {
namespace {

// A variable as a number from `least`; nothing when it is not set.
std::optional<int> number_in(const char* name, int least) {
  const char* text = std::getenv(name);
  if (!text || !*text) return std::nullopt;
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  SINTER_CHECK(*end == 0 && value >= least && value <= 1 << 24, "{} is '{}'; expected a number from {}", name, text,
               least);
  return static_cast<int>(value);
}

struct Names {
  const char* launcher;
  const char *ranks, *rank, *local_ranks, *local_rank;
};

// Slurm sets SLURM_NTASKS for batch scripts too; only inside srun is SLURM_STEP_NUM_TASKS this program's own. PMIx
// tells the rank by variable and all else by its library, which MPI asks; srun --mpi=pmix sets Slurm's variables as
// well.
constexpr Names kLaunchers[] = {
    {"Open MPI", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK"},
    {"PMI", "PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS", "MPI_LOCALRANKID"},
    {"PMIx", "PMIX_SIZE", "PMIX_RANK", "PMIX_LOCAL_SIZE", "PMIX_LOCAL_RANK"},
    {"Slurm", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", nullptr, "SLURM_LOCALID"},
    {"torchrun", "WORLD_SIZE", "RANK", "LOCAL_WORLD_SIZE", "LOCAL_RANK"},
};

int count_gpus() {
  int count = 0;
  while (count < 64 && core::cuda_runtime(count)) ++count;
  return count;
}

}  // namespace

int slurm_tasks_of_node(const std::string& text, int node) {
  const char* at = text.c_str();
  while (*at) {
    char* end = nullptr;
    const long tasks = std::strtol(at, &end, 10);
    if (end == at || tasks < 1) return 0;
    long nodes = 1;
    if (end[0] == '(' && end[1] == 'x') {
      nodes = std::strtol(end + 2, &end, 10);
      if (*end++ != ')') return 0;
    }
    if (node < nodes) return static_cast<int>(tasks);
    node -= static_cast<int>(nodes);
    at = *end == ',' ? end + 1 : end;
    if (at == end && *end) return 0;
  }
  return 0;
}

Launch read_launch() {
  for (const Names& names : kLaunchers) {
    const std::optional<int> ranks = number_in(names.ranks, 1);
    if (!ranks) continue;
    Launch found{names.launcher, number_in(names.rank, 0).value_or(0), *ranks, 0, 1};
    found.local_rank = number_in(names.local_rank, 0).value_or(0);
    if (names.local_ranks) {
      found.local_ranks = number_in(names.local_ranks, 1).value_or(1);
    } else {
      const char* tasks = std::getenv("SLURM_STEP_TASKS_PER_NODE");
      const int node = number_in("SLURM_NODEID", 0).value_or(0);
      found.local_ranks = std::max(1, slurm_tasks_of_node(tasks ? tasks : "", node));
    }
    SINTER_CHECK(found.rank < found.ranks, "{} is {}, but {} is {}", names.rank, found.rank, names.ranks, found.ranks);
    return found;
  }
  return {};
}

const Launch& launch() {
  static const Launch found = read_launch();
  return found;
}

core::Device local_device(const std::string& text, const Launch& launch) {
  core::Device device = core::parse_device(text);
  if (text != "cuda" || launch.local_ranks == 1) return device;
  const int gpus = count_gpus();
  if (gpus > 0) device.index = launch.local_rank % gpus;
  return device;
}

}  // namespace sinter::comm

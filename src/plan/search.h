// The best layouts of a model on a cluster: every valid division into data (sharded and replicated), tensor, pipeline,
// context and expert parallel ranks, pruned by memory, ranked by predicted time, with the reasons for the losers.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "plan/hardware.h"
#include "plan/memory.h"
#include "plan/models.h"
#include "plan/time.h"
#include "spec/parallel_spec.h"

namespace sinter::plan {

struct SearchRequest {
  spec::ModelSpec model;
  Cluster cluster;
  int64_t global_batch = 0;  // sequences per step
  int64_t seq_len = 4096;
  std::string software = "sinter";
  MatrixFormat format = MatrixFormat::bf16;
  // What every candidate starts from: precision and offload. Its layout fields are not used.
  spec::ParallelSpec base;

  // Constraints. 0 or empty: any.
  int64_t max_tp = 0, max_pp = 0;
  int64_t tp = 0, pp = 0, cp = 0, ep = 0, micro_batch = 0, shard = 0;  // exactly this one
  int zero = -1;                                                       // -1: any stage
  std::vector<spec::Recompute> recompute;
  bool trained_only = false;   // only what `sinter train` runs today (spec/trained_layouts.h)
  double memory_share = 0.95;  // of the device's memory that may be planned
  int top = 10;
};

struct Candidate {
  spec::ParallelSpec parallel;
  StepEstimate step;
  StageMemory memory;  // of the fullest stage
  std::string why;     // against the best: how much slower and through what
};

struct Rejection {
  std::string reason;
  int64_t count = 0;
  spec::ParallelSpec example;
};

struct SearchResult {
  // choose_layout's first, then by time; one per division, with its best micro-batch and recompute
  std::vector<Candidate> best;
  std::vector<Rejection> rejected;  // most frequent first
  int64_t considered = 0, fitting = 0;
  double usable_bytes = 0;  // memory_share of the device
  // `best` is empty because no valid layout fits (then `smallest` needs least), or, when false, because none is valid.
  bool nothing_fits = false;
  spec::ParallelSpec smallest;
  StageMemory smallest_memory;
};

// A layout as far as the choice among several needs it.
struct Ranked {
  double seconds = 0;
  int64_t tensor_nodes = 1;  // nodes a tensor-parallel group spans
};
// Times of collectives over several nodes are predicted worst. Of the layouts within this share of the fastest, the one
// whose tensor-parallel groups span the fewest nodes is taken; of those, the fastest.
inline constexpr double kNodeMargin = 0.2;
size_t choose_layout(const std::vector<Ranked>& layouts);
int64_t tensor_nodes(const spec::ParallelSpec& parallel, const Cluster& cluster);

// Throws base::Error, with the nearest valid choice, when a constraint cannot be met at all.
SearchResult search_layouts(const SearchRequest& request);

// A recipe that `sinter train` reads: the model, the batch and the ranks of the layout. What the trainer has no keys
// for stands in comments; what only the user knows is marked FILL IN.
std::string training_recipe(const SearchRequest& request, const ResolvedModel& model,
                            const spec::ParallelSpec& parallel);
// A batch script that runs `sinter train RECIPE` on the cluster.
std::string slurm_script(const spec::ParallelSpec& parallel, const Cluster& cluster, const std::string& recipe,
                         const std::string& job_name, double hours);

}  // namespace sinter::plan

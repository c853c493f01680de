#include "base/error.h"
#include "spec/recipe.h"

namespace sinter::spec {

ParallelSpec make_layout(const Recipe& recipe, int64_t ranks) {
  ParallelSpec p = recipe.parallel;
  const int64_t others = p.tp * p.pp * p.cp;
  if (p.shard == 0) {  // dp is not given: what the other axes leave
    SINTER_CHECK(
        ranks % (others * p.replica) == 0,
        "{} ranks cannot be divided among parallel.tp {} x pp {} x cp {} x replica {}; launch a multiple of {}", ranks,
        p.tp, p.pp, p.cp, p.replica, others * p.replica);
    p.shard = ranks / (others * p.replica);
  }
  SINTER_CHECK(p.ranks() == ranks,
               "parallel.dp is {} x tp {} x pp {} x cp {} = {} ranks, but the launch has {} rank{}; a dry "
               "run for other machines: --dry-run --on 16x8xH100",
               p.dp(), p.tp, p.pp, p.cp, p.ranks(), ranks, ranks == 1 ? "" : "s");
  p.recompute = recipe.train.recompute;
  p.compute = base::is_fp8(recipe.train.precision) ? base::DType::bf16 : recipe.train.precision;
  // Divided gradients are f32: whole they are there for two blocks only, and the pieces are few.
  const bool divides_gradients = (p.zero >= 2 && (p.dp() > 1 || p.ep > 1)) || p.offload.gradients;
  p.main_gradients = divides_gradients ? base::DType::f32 : recipe.train.gradients;
  p.moments = recipe.optimizer.states;
  p.num_moments = recipe.optimizer.kind == OptimizerKind::muon  ? 1
                  : recipe.optimizer.kind == OptimizerKind::sgd ? (recipe.optimizer.momentum > 0 ? 1 : 0)
                                                                : 2;
  p.micro_batch = recipe.train.micro_batch;
  p.seq_len = recipe.data.sequence_length;
  const int64_t batch = p.micro_batch * p.dp();
  p.global_batch = recipe.train.batch_tokens ? recipe.train.batch_tokens / p.seq_len : batch;
  return p;
}

}  // namespace sinter::spec

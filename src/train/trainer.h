// A training run from a recipe: data, plan, steps, checkpoints and what is printed on the way.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "models/transformer.h"
#include "parallel/mesh.h"
#include "spec/recipe.h"
#include "tokenizer/tokenizer.h"

namespace sinter::train {

struct RunPlan;  // run_plan.h

// What other modules hang into a run.
struct TrainHooks {
  // Every log.sample_every steps, on rank 0: shows what the model says. The tokenizer is the run's.
  std::function<void(const models::Transformer& transformer, const tokenizer::Tokenizer& tokenizer, int64_t step)>
      sample;
  // Every eval.every steps and at the end, on all ranks, each of which has the whole model: what it scores on tasks, by
  // name; what rank 0 returns counts. Collective over `ranks`.
  std::function<std::vector<std::pair<std::string, double>>(const models::Transformer& transformer,
                                                            const tokenizer::Tokenizer& tokenizer,
                                                            comm::Communicator& ranks, int64_t step)>
      evaluate;
};

struct TrainResult {
  int64_t steps = 0;  // done, in all runs together
  double loss = 0;    // of the last step
  std::optional<double> validation_loss;
  int64_t validation_step = 0;  // whose that is
  // "" when all steps are done, else why not: "SIGTERM", "time limit", "diverged: ..."
  std::string stopped;
  bool is_early = false;   // stopped by train.patience: the run is complete
  std::string checkpoint;  // the last one written; "" when there is none
  double last_step_seconds = 0;
  std::vector<double> losses;  // of all steps logged, earlier runs included; rank 0 only
};

class Trainer {
 public:
  // Reads the recipe's data (tokenizing text sources) and plans the run; allocates nothing large. Throws base::Error
  // when something does not fit together, also when the plan does not fit this machine's memory.
  // `make_plan` makes the run out of the recipe: of pretraining where it is not given.
  using MakePlan = std::function<RunPlan(const spec::Recipe& recipe, const parallel::Mesh& mesh)>;
  Trainer(const spec::Recipe& recipe, comm::Communicator& comm, const MakePlan& make_plan = {});
  ~Trainer();
  // Parameters, batch, steps, data, memory: what --dry-run prints.
  std::string plan_text() const;
  std::string plan_json() const;
  const RunPlan& plan() const { return *plan_; }
  // Trains to the end of the recipe, or until a signal, the time limit or the guard stops it.
  TrainResult run(const TrainHooks& hooks = {});

 private:
  std::unique_ptr<comm::Communicator> device_group_;  // of GPUs; null: the launch's own carries tensors
  std::unique_ptr<parallel::Mesh> mesh_;
  const double began_;  // by StopRequest's clock
  std::unique_ptr<RunPlan> plan_;
};

}  // namespace sinter::train

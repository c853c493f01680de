// What `train` and `tune` show and measure on the way: samples, and tasks the model is tried on.
#pragma once
#include "comm/communicator.h"
#include "spec/recipe.h"
#include "train/trainer.h"

namespace sinter::cli {

// As the recipe's [log] and [eval] say. Reads the tasks and their documents: throws base::Error where one is not there,
// before anything is trained. Collective.
train::TrainHooks make_run_hooks(const spec::Recipe& recipe, comm::Communicator& comm);

}  // namespace sinter::cli

// Other weights for a model that is in use: a newer checkpoint of what is served.
#pragma once
#include <string>

#include "models/open_model.h"

namespace sinter::models {

// Gives `model` the weights of `fresh`: numbers are copied to where the model has them, tensors that stand apart (in
// mapped files, in blocks) are taken over. Nobody may read the model's weights meanwhile. Throws base::Error that names
// `origin`, where `fresh` comes from, before anything is changed: where the two differ in config.json or in the format
// of a tensor, and for blocks on a GPU, whose recorded graphs know the old ones.
void replace_weights(OpenModel& model, const OpenModel& fresh, const std::string& origin);

}  // namespace sinter::models

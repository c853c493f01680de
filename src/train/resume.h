// What may change between the runs of a checkpoint: much, but not the model.
#pragma once
#include <map>
#include <string>

#include "spec/recipe.h"

namespace sinter::train {

// "section.key" and its value, line by line as recipe_to_toml writes them; lines outside a section by their own key.
std::map<std::string, std::string> recipe_keys(const std::string& toml);

// Holds the recipe that wrote the checkpoint `from` (as TOML) against the one that goes on with it. Throws base::Error
// naming the first key of the architecture that differs: tensors of the same shapes would be read as another model.
// Other keys may change. Returns them, one line "section.key: before -> now" each. A recipe of another version that
// does not parse any more tells nothing.
std::string check_resume(const std::string& from, const std::string& recipe_before, const spec::Recipe& recipe,
                         const spec::ModelSpec& model);

// Whether a checkpoint's recipe trained in f16, whose loss scale is then worth keeping.
bool was_in_f16(const std::string& recipe_before);

}  // namespace sinter::train

// What no key of a recipe can tell by itself.
#pragma once
#include <string>

#include "spec/recipe.h"

namespace sinter::spec {

// Throws base::Error that begins with `origin` and names the keys that do not go together.
void check_recipe(const Recipe& recipe, const std::string& origin);

}  // namespace sinter::spec

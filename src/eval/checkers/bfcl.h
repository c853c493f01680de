// BFCL's checks of function calls written as Python: the calls are parsed, never run.
#pragma once
#include <optional>
#include <string>

#include "eval/tasks/template.h"

namespace sinter::eval {

// A list of {name: {argument: value}} from text such as "[f(x=1), g(y='a')]"; nullopt where it is none.
std::optional<Value> decode_calls(std::string text);

// Whether decoded calls are right for the functions described and the possible answers. `category` begins with simple,
// multiple, parallel or irrelevance. `has_underscores`: dots in names of functions were given to the model as "_".
bool calls_match(const Value& functions, const std::optional<Value>& calls, const Value* truth,
                 const std::string& category, bool has_underscores = false);

// A document with function, ground_truth and category.
bool check_calls(const TaskDocument& document, const std::string& answer);

}  // namespace sinter::eval

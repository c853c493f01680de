// JSON schemas (2020-12) to grammars: every text the grammar allows is JSON that the schema accepts.
//
// Honoured: type, enum, const, properties, required, additionalProperties, patternProperties, propertyNames,
// minProperties, maxProperties, items, prefixItems, minItems, maxItems, minLength, maxLength, pattern, format (date,
// time, date-time, duration, email, hostname, ipv4, ipv6, uri, uuid), minimum, maximum, exclusive*, multipleOf, anyOf,
// oneOf where the branches exclude each other, allOf, not of types, $ref within the schema, $defs, $anchor. What cannot
// be honoured is refused by name. Properties come in the schema's order.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "engine/grammar/program.h"

namespace sinter::engine::grammar {

// Throws base::Error naming the keyword and where it stands.
Program compile_schema(std::string_view schema, const GrammarLimits& limits);

// A function and its arguments' schema.
struct CallSchema {
  std::string name, parameters;
};
// How a model writes calls: open_all (open {"name": NAME, "<arguments_key>": ARGUMENTS} close) ... close_all.
struct CallForm {
  std::string open_all, open, close, between, close_all;
  std::string arguments_key = "arguments";
  int64_t max_calls = 1;
};
// One call or more of these functions, each with arguments that its schema accepts.
Program compile_calls(const std::vector<CallSchema>& calls, const CallForm& form, const GrammarLimits& limits);

}  // namespace sinter::engine::grammar

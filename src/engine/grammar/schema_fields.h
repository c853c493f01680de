// Reading the keywords of a JSON schema; errors name the keyword. Internal to schema_set.h's sources.
#pragma once
#include <string>

#include "engine/grammar/schema_set.h"

namespace sinter::engine::grammar {

uint32_t type_bit(const std::string& name);
uint32_t types_of(const Json& type);
uint32_t type_of(const Json& value);
int64_t count_of(const Json& schema, const char* name);
double number_of(const Json& schema, const char* name);
const Json& list_of(const Json& schema, const char* name);
const Json& object_of(const Json& schema, const char* name);
std::string text_of(const Json& schema, const char* name);
size_t char_count(const std::string& text);
// Equal as JSON schema has it: 1 and 1.0 are, and the order of an object's members says nothing.
bool is_equal(const Json& a, const Json& b);

}  // namespace sinter::engine::grammar

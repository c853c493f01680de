// Messages as rows write them: OpenAI's {role, content} and ShareGPT's {from, value}, contents in parts, tool calls.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "tune/data/record.h"

namespace sinter::tune {

// Whether it is a list of objects with "role" or "from", or one such object.
bool holds_messages(const nlohmann::ordered_json& value);
// Throws base::Error naming the message that is wrong.
std::vector<Message> parse_messages(const nlohmann::ordered_json& value);
Message make_message(const std::string& role, const std::string& content);
// "tools" of a row: a list of functions, or its JSON as a text; each is given OpenAI's form.
tokenizer::jinja::Value parse_tools(const nlohmann::ordered_json& value);

}  // namespace sinter::tune

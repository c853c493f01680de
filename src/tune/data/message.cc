#include "tune/data/message.h"

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace sinter::tune {
namespace {

using Json = nlohmann::ordered_json;
using base::fail;

// ShareGPT's names; a role that is not listed stays as it is.
std::string role_of(const std::string& name) {
  static const std::map<std::string, std::string> kRoles = {
      {"human", "user"},       {"prompter", "user"},          {"gpt", "assistant"},
      {"model", "assistant"},  {"bot", "assistant"},          {"chatgpt", "assistant"},
      {"observation", "tool"}, {"function_response", "tool"}, {"function_call", "assistant"}};
  const auto found = kRoles.find(name);
  return found == kRoles.end() ? name : found->second;
}

const Json* find(const Json& object, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const auto found = object.find(name);
    if (found != object.end()) return &*found;
  }
  return nullptr;
}

std::string text_of(const Json& value, const char* what) {
  SINTER_CHECK(value.is_string(), "{} is {}, expected a text", what, value.type_name());
  return value.get<std::string>();
}

Json parse_text(const std::string& text, const char* what) {
  const Json value = Json::parse(text, nullptr, false);
  if (value.is_discarded()) fail("{} is not JSON: '{}'", what, text.substr(0, 80));
  return value;
}

Json function_call(const Json& call, size_t number) {
  SINTER_CHECK(call.is_object() && call.contains("name"), "a function call has no \"name\"");
  return {{"id", fmt::format("call{:05d}", number)}, {"type", "function"}, {"function", call}};
}

// A list of typed parts: texts joined, reasoning and tool calls where templates look for them.
void join_parts(const Json& parts, Json& message) {
  std::string text, reasoning;
  Json calls = Json::array();
  for (const Json& part : parts) {
    SINTER_CHECK(part.is_object() && part.contains("type"), "a part of \"content\" has no \"type\"");
    const std::string type = text_of(part["type"], "\"type\" of a part");
    const Json* value = find(part, {"text", "value"});
    if (type == "text" && value) {
      text += text_of(*value, "a part of \"content\"");
    } else if (type == "reasoning" && value) {
      reasoning += text_of(*value, "a part of \"content\"");
    } else if (type == "tool_call" && value) {
      calls.push_back(function_call(value->is_string() ? parse_text(value->get<std::string>(), "a tool call") : *value,
                                    calls.size() + 1));
    } else {
      fail("\"content\" has a part of type '{}'; only text, reasoning and tool_call can be learned", type);
    }
  }
  message["content"] = text;
  if (!reasoning.empty()) message["reasoning_content"] = reasoning;
  if (!calls.empty()) message["tool_calls"] = calls;
}

std::optional<double> take_weight(Json& message) {
  std::optional<double> weight;
  for (const char* key : {"weight", "loss_weight"}) {
    const auto found = message.find(key);
    if (found == message.end()) continue;
    if (found->is_number()) weight = found->get<double>();
    message.erase(key);
  }
  if (const auto train = message.find("train"); train != message.end() && train->is_boolean()) {
    weight = train->get<bool>() ? 1 : 0;
    message.erase("train");
  }
  SINTER_CHECK(!weight || (*weight >= 0 && *weight <= 1e6), "a message's weight is {}, expected 0 or more", *weight);
  return weight;
}

// Calls of a conversation so far: a tool's answer belongs to the last one.
struct CallState {
  size_t count = 0;
  std::string id, name;
};

std::string keys_of(const Json& object) {
  std::string keys;
  for (const auto& [key, value] : object.items()) {
    keys += (keys.empty() ? "\"" : ", \"") + key + (value.is_null() ? "\" = null" : "\"");
  }
  return keys;
}

Message parse_message(const Json& given, CallState& calls) {
  SINTER_CHECK(given.is_object(), "it is {}, expected an object", given.type_name());
  Json message;
  if (const Json* role = find(given, {"role"}); role && role->is_string()) {
    message = given;
    if (!message.contains("content") || message["content"].is_null()) {
      const bool says_nothing = !find(given, {"tool_calls", "function_call", "reasoning_content", "thinking"});
      if (says_nothing) fail("it has no \"content\": expected a text and found {}", keys_of(given));
      message["content"] = "";
    }
  } else {
    const Json *from = find(given, {"from"}), *value = find(given, {"value"});
    SINTER_CHECK(from && value, "it has neither \"role\" and \"content\" nor \"from\" and \"value\"");
    message["role"] = text_of(*from, "\"from\"");
    message["content"] = *value;
    for (const auto& [key, item] : given.items()) {
      if (key != "from" && key != "value") message[key] = item;
    }
  }
  const std::string name = text_of(message["role"], "\"role\"");
  Message out;
  out.role = role_of(name);
  message["role"] = out.role;
  out.weight = take_weight(message);
  if (message["content"].is_array()) {
    const Json parts = message["content"];
    join_parts(parts, message);
  }
  if (name == "function_call") {
    const Json call = parse_text(text_of(message["content"], "\"value\""), "a function call");
    message["content"] = "";
    message["tool_calls"] = Json::array();
    for (const Json& one : call.is_array() ? call : Json::array({call}))
      message["tool_calls"].push_back(function_call(one, ++calls.count));
    SINTER_CHECK(!message["tool_calls"].empty(), "a function call without a function");
    calls.id = message["tool_calls"].back()["id"];
    const Json& function = message["tool_calls"].back()["function"];
    calls.name = text_of(function["name"], "\"name\" of a function call");
  } else if (out.role == "tool" && out.role != name && !calls.id.empty()) {
    message["name"] = calls.name;
    message["tool_call_id"] = calls.id;
  }
  out.content = text_of(message["content"], "\"content\"");
  out.value = tokenizer::jinja::from_json(message);
  return out;
}

}  // namespace

bool holds_messages(const Json& value) {
  if (value.is_array()) return !value.empty() && !value[0].is_array() && holds_messages(value[0]);
  return value.is_object() && (value.contains("role") || value.contains("from"));
}

std::vector<Message> parse_messages(const Json& value) {
  std::vector<Message> messages;
  CallState calls;
  if (value.is_object()) return {parse_message(value, calls)};
  SINTER_CHECK(value.is_array(), "messages are {}, expected a list", value.type_name());
  for (const Json& one : value) {
    try {
      messages.push_back(parse_message(one, calls));
    } catch (const base::Error& e) {
      fail("message {}: {}", messages.size() + 1, e.what());
    }
  }
  return messages;
}

Message make_message(const std::string& role, const std::string& content) {
  Message message{role, content, {}, {}};
  message.value = tokenizer::jinja::from_json(Json{{"role", role}, {"content", content}});
  return message;
}

tokenizer::jinja::Value parse_tools(const Json& value) {
  if (value.is_null()) return tokenizer::jinja::Value::none();
  Json tools = value;
  if (value.is_string()) {
    const auto text = value.get<std::string>();
    if (text.find_first_not_of(" \n\t") == std::string::npos) return tokenizer::jinja::Value::none();
    tools = parse_text(text, "\"tools\"");
  }
  SINTER_CHECK(tools.is_array(), "\"tools\" is {}, expected a list of functions", tools.type_name());
  if (tools.empty()) return tokenizer::jinja::Value::none();
  for (Json& tool : tools) {
    SINTER_CHECK(tool.is_object(), "a tool is {}, expected an object", tool.type_name());
    if (!tool.contains("function") && tool.contains("name")) tool = Json{{"type", "function"}, {"function", tool}};
  }
  return tokenizer::jinja::from_json(tools);
}

}  // namespace sinter::tune

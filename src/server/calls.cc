#include "server/calls.h"

#include <nlohmann/json.hpp>

namespace sinter::server {
namespace {

const std::vector<std::string> kCommonFields{"model",
                                             "max_tokens",
                                             "max_completion_tokens",
                                             "temperature",
                                             "top_p",
                                             "top_k",
                                             "min_p",
                                             "typical_p",
                                             "seed",
                                             "n",
                                             "best_of",
                                             "stop",
                                             "stop_token_ids",
                                             "stream",
                                             "stream_options",
                                             "logprobs",
                                             "top_logprobs",
                                             "prompt_logprobs",
                                             "presence_penalty",
                                             "frequency_penalty",
                                             "repetition_penalty",
                                             "logit_bias",
                                             "allowed_token_ids",
                                             "bad_words",
                                             "min_tokens",
                                             "ignore_eos",
                                             "echo",
                                             "prompt",
                                             "messages",
                                             "tools",
                                             "tool_choice",
                                             "parallel_tool_calls",
                                             "response_format",
                                             "guided_json",
                                             "guided_regex",
                                             "guided_choice",
                                             "guided_grammar",
                                             "structured_outputs",
                                             "grammar",
                                             "json_schema",
                                             "priority",
                                             "timeout",
                                             "cache_salt",
                                             "user",
                                             "chat_template_kwargs",
                                             "add_generation_prompt",
                                             "continue_final_message",
                                             "include_stop_str_in_output",
                                             "skip_special_tokens",
                                             "dry_multiplier",
                                             "dry_base",
                                             "dry_allowed_length",
                                             "dry_penalty_last_n",
                                             "suffix",
                                             "functions",
                                             "function_call",
                                             "metadata"};

// Of these the ones that other APIs' chats have too.
const std::vector<std::string> kSharedFields{"model",
                                             "temperature",
                                             "top_p",
                                             "top_k",
                                             "min_p",
                                             "typical_p",
                                             "seed",
                                             "stop_token_ids",
                                             "stream",
                                             "presence_penalty",
                                             "logit_bias",
                                             "frequency_penalty",
                                             "bad_words",
                                             "repetition_penalty",
                                             "min_tokens",
                                             "allowed_token_ids",
                                             "ignore_eos",
                                             "guided_json",
                                             "guided_regex",
                                             "guided_choice",
                                             "guided_grammar",
                                             "structured_outputs",
                                             "grammar",
                                             "json_schema",
                                             "priority",
                                             "timeout",
                                             "cache_salt",
                                             "chat_template_kwargs",
                                             "dry_multiplier",
                                             "dry_base",
                                             "dry_allowed_length",
                                             "dry_penalty_last_n",
                                             "skip_special_tokens"};

void read_dry(const Fields& fields, engine::DryOptions& dry) {
  if (auto v = fields.number("dry_multiplier", 0, 100)) dry.multiplier = static_cast<float>(*v);
  if (auto v = fields.number("dry_base", 1, 10)) dry.base = static_cast<float>(*v);
  if (auto v = fields.integer("dry_allowed_length", 1, 1000)) dry.allowed_length = *v;
  if (auto v = fields.integer("dry_penalty_last_n", -1, 1 << 24)) dry.range = *v < 0 ? 0 : *v;
}

void read_logit_bias(const Fields& fields, engine::SamplingOptions& sampling) {
  const Json* bias = fields.object("logit_bias");
  if (!bias) return;
  if (bias->size() > 1024) refuse("logit_bias", "'logit_bias' has {} entries; at most 1024 are taken", bias->size());
  for (const auto& [key, value] : bias->items()) {
    const bool is_id = !key.empty() && key.size() < 10 && key.find_first_not_of("0123456789") == std::string::npos;
    if (!is_id) refuse("logit_bias", "'logit_bias' has the key '{}'; expected token ids", key.substr(0, 40));
    const bool is_right = value.is_number() && value.get<double>() >= -100 && value.get<double>() <= 100;
    if (!is_right) refuse("logit_bias", "'logit_bias' of token {} is not a number from -100 to 100", key);
    sampling.logit_bias.emplace_back(std::stoi(key), value.get<float>());
  }
}

void set_output(StructuredOutput& output, StructuredOutput::Kind kind, std::string text, const std::string& param) {
  if (output.kind != StructuredOutput::Kind::none)
    refuse(param, "'{}' and '{}' both say what the output must look like; give one", output.param, param);
  output.kind = kind;
  output.text = std::move(text);
  output.param = param;
}

// A schema as an object, true or false, or as a text that holds one.
std::string schema_text(const Json& value, const std::string& param) {
  if (value.is_object() || value.is_boolean()) return dump_json(value);
  if (value.is_string()) return value.get<std::string>();
  refuse(param, "'{}' is not a JSON schema: expected an object", param);
}

void read_response_format(const Fields& fields, StructuredOutput& output) {
  const Json* format = fields.object("response_format");
  if (!format) return;
  const auto type = Fields(*format).text("type");
  if (!type) refuse("response_format", "'response_format' has no 'type'; expected text, json_object or json_schema");
  if (*type == "text") return;
  if (*type == "json_object") {
    set_output(output, StructuredOutput::Kind::json_object, "", "response_format");
  } else if (*type == "json_schema") {
    const Json* outer = Fields(*format).object("json_schema");
    if (!outer) refuse("response_format", "'response_format' has no 'json_schema'");
    const Json* schema = Fields(*outer).find("schema");
    if (!schema) refuse("response_format", "'response_format.json_schema' has no 'schema'");
    set_output(output, StructuredOutput::Kind::schema, schema_text(*schema, "response_format"), "response_format");
  } else {
    refuse("response_format", "'response_format.type' is '{}'; expected text, json_object or json_schema",
           type->substr(0, 40));
  }
}

// Fields of one object: vLLM's structured_outputs, or the request itself with the prefix "guided_".
void read_guided(const Fields& fields, const std::string& prefix, StructuredOutput& output) {
  using Kind = StructuredOutput::Kind;
  if (const Json* schema = fields.find(prefix + "json"))
    set_output(output, Kind::schema, schema_text(*schema, prefix + "json"), prefix + "json");
  if (auto text = fields.text(prefix + "regex")) set_output(output, Kind::regex, *text, prefix + "regex");
  if (auto text = fields.text(prefix + "grammar")) set_output(output, Kind::grammar, *text, prefix + "grammar");
  if (fields.find(prefix + "choice")) {
    auto choices = fields.texts(prefix + "choice", 1000);
    if (choices.empty()) refuse(prefix + "choice", "'{}choice' is empty; expected at least one text", prefix);
    set_output(output, Kind::choice, "", prefix + "choice");
    output.choices = std::move(choices);
  }
}

void read_output(const Fields& fields, StructuredOutput& output) {
  read_response_format(fields, output);
  read_guided(fields, "guided_", output);
  if (const Json* inner = fields.object("structured_outputs")) {
    read_guided(Fields(*inner), "", output);
    if (Fields(*inner).boolean("json_object").value_or(false))
      set_output(output, StructuredOutput::Kind::json_object, "", "structured_outputs");
  }
  if (auto text = fields.text("grammar")) set_output(output, StructuredOutput::Kind::grammar, *text, "grammar");
  if (const Json* schema = fields.find("json_schema"))
    set_output(output, StructuredOutput::Kind::schema, schema_text(*schema, "json_schema"), "json_schema");
}

void read_stops(const Fields& fields, const CallLimits& limits, GenerationCall& call) {
  call.stops = fields.texts("stop", limits.max_stops);
  for (const std::string& stop : call.stops) {
    if (stop.empty()) refuse("stop", "'stop' has an empty text");
    if (stop.size() > limits.max_stop_bytes)
      refuse("stop", "'stop' has a text of {} bytes; at most {} are taken", stop.size(), limits.max_stop_bytes);
  }
  call.stop_ids = fields.ids("stop_token_ids", 64);
  call.ignores_eos = fields.boolean("ignore_eos").value_or(false);
  call.includes_stop = fields.boolean("include_stop_str_in_output").value_or(false);
}

void read_common(const Fields& fields, const CallLimits& limits, GenerationCall& call) {
  fields.check_slips(kCommonFields);
  call.model = fields.text("model").value_or("");
  read_sampling(fields, limits, call);
  if (auto v = fields.integer("max_completion_tokens", 0, 1 << 24)) call.max_tokens = *v;
  if (auto v = fields.integer("max_tokens", 0, 1 << 24)) call.max_tokens = *v;
  call.min_tokens = fields.integer("min_tokens", 0, 1 << 24).value_or(0);
  call.n = static_cast<int32_t>(fields.integer("n", 1, limits.max_choices).value_or(1));
  call.best_of = static_cast<int32_t>(fields.integer("best_of", 1, limits.max_choices).value_or(0));
  if (call.best_of > 0 && call.best_of < call.n)
    refuse("best_of", "'best_of' is {}, but 'n' is {}", call.best_of, call.n);
  call.streams = fields.boolean("stream").value_or(false);
  if (call.streams && call.best_of > call.n) refuse("best_of", "'best_of' above 'n' cannot be streamed");
  if (const Json* options = fields.object("stream_options"))
    call.includes_usage = Fields(*options).boolean("include_usage").value_or(false);
  call.skips_special = fields.boolean("skip_special_tokens").value_or(true);
  call.priority = static_cast<int32_t>(fields.integer("priority", -1000, 1000).value_or(0));
  call.max_seconds = fields.number("timeout", 0.001, limits.max_seconds).value_or(0);
  call.cache_salt = fields.text("cache_salt").value_or("");
  call.prompt_logprobs = static_cast<int32_t>(fields.integer("prompt_logprobs", 0, limits.max_logprobs).value_or(-1));
  read_stops(fields, limits, call);
  read_output(fields, call.output);
}

}  // namespace

void read_sampling(const Fields& fields, const CallLimits& limits, GenerationCall& call) {
  engine::SamplingOptions& s = call.sampling;
  auto take = [&](const char* name, double least, double most, float& out) {
    if (auto v = fields.number(name, least, most)) out = static_cast<float>(*v);
  };
  take("temperature", 0, 100, s.temperature);
  take("top_p", 1e-6, 1, s.top_p);
  take("min_p", 0, 1, s.min_p);
  take("typical_p", 1e-6, 1, s.typical_p);
  take("presence_penalty", -2, 2, s.presence_penalty);
  take("frequency_penalty", -2, 2, s.frequency_penalty);
  take("repetition_penalty", 0.01, 100, s.repetition_penalty);
  if (auto v = fields.integer("top_k", -1, 1 << 24)) s.top_k = *v < 0 ? 0 : *v;
  if (auto v = fields.integer("seed", INT64_MIN, INT64_MAX)) {
    s.seed = static_cast<uint64_t>(*v);
    call.has_seed = true;
  }
  read_dry(fields, s.dry);
  read_logit_bias(fields, s);
  s.allowed_tokens = fields.ids("allowed_token_ids", 4096);
  call.bad_words = fields.texts("bad_words", 256);
}

Json shared_fields(const Fields& fields, const std::vector<std::string>& own) {
  std::vector<std::string> known = kSharedFields;
  known.insert(known.end(), own.begin(), own.end());
  fields.check_slips(known);
  Json out = Json::object();
  for (const std::string& name : kSharedFields) {
    if (const Json* value = fields.find(name)) out[name] = *value;
  }
  return out;
}

CompletionCall read_completion_call(const Json& body, const CallLimits& limits) {
  const Fields fields(body);
  CompletionCall call;
  read_common(fields, limits, call);
  fields.refuse_unless("suffix", "");
  call.echoes = fields.boolean("echo").value_or(false);
  call.logprobs = static_cast<int32_t>(fields.integer("logprobs", 0, limits.max_logprobs).value_or(-1));
  if (call.echoes && call.streams) refuse("echo", "'echo' cannot be streamed");
  call.prompts = read_prompts(fields, "prompt", limits.max_prompts);
  return call;
}

std::vector<CallPrompt> read_prompts(const Fields& fields, const std::string& name, size_t most) {
  const Json* prompt = fields.find(name);
  if (!prompt) refuse(name, "'{}' is missing; expected a text, a list of texts, or token ids", name);
  std::vector<CallPrompt> prompts;
  auto add_ids = [&](const Json& list) {
    CallPrompt p{.is_ids = true};
    for (const Json& id : list) {
      const bool is_right = id.is_number_integer() && id.get<double>() >= 0 && id.get<double>() <= INT32_MAX;
      if (!is_right) refuse(name, "'{}' mixes kinds; expected a text, a list of texts, or lists of token ids", name);
      p.ids.push_back(id.get<int32_t>());
    }
    prompts.push_back(std::move(p));
  };
  if (prompt->is_string()) {
    prompts.push_back({prompt->get<std::string>(), {}, false});
  } else if (prompt->is_array() && !prompt->empty() && (*prompt)[0].is_number()) {
    add_ids(*prompt);
  } else if (prompt->is_array() && !prompt->empty()) {
    if (prompt->size() > most) refuse(name, "'{}' has {} entries; at most {} are taken", name, prompt->size(), most);
    for (const Json& entry : *prompt) {
      if (entry.is_string()) {
        prompts.push_back({entry.get<std::string>(), {}, false});
      } else if (entry.is_array()) {
        add_ids(entry);
      } else {
        refuse(name, "'{}' mixes kinds; expected a text, a list of texts, or lists of token ids", name);
      }
    }
  } else {
    refuse(name, "'{}' is empty or of a wrong kind; expected a text, a list of texts, or token ids", name);
  }
  return prompts;
}

std::string content_text(const Json& content, const std::string& param) {
  if (content.is_string()) return content.get<std::string>();
  if (content.is_null()) return "";
  if (!content.is_array()) refuse(param, "a message's 'content' is neither a text nor a list of parts");
  std::string text;
  for (const Json& part : content) {
    if (part.is_string()) {
      text += part.get<std::string>();
      continue;
    }
    const auto type = part.is_object() ? Fields(part).text("type").value_or("") : "";
    if (type != "text" && type != "input_text" && type != "output_text" && type != "refusal")
      refuse(param, "a message's content has a part of type '{}'; this model reads text only", type.substr(0, 40));
    text += Fields(part).text("text").value_or("");
  }
  return text;
}

namespace {

// Templates expect arguments as an object; clients send the text of one.
void open_arguments(Json& message) {
  if (!message.contains("tool_calls") || message["tool_calls"].is_null()) return;
  if (!message["tool_calls"].is_array()) refuse("messages", "'tool_calls' of a message is not a list");
  for (Json& call : message["tool_calls"]) {
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object())
      refuse("messages", "a tool call of a message has no 'function'");
    Json& function = call["function"];
    if (!function.contains("name") || !function["name"].is_string())
      refuse("messages", "a tool call of a message has no 'name'");
    if (!function.contains("arguments")) function["arguments"] = Json::object();
    if (!function["arguments"].is_string()) continue;
    Json parsed = Json::parse(function["arguments"].get<std::string>(), nullptr, false);
    if (!parsed.is_object()) refuse("messages", "the 'arguments' of a tool call are not a JSON object");
    function["arguments"] = std::move(parsed);
  }
}

void read_message_list(const Fields& fields, ChatCall& call) {
  const Json* messages = fields.array("messages");
  if (!messages || messages->empty()) refuse("messages", "'messages' is missing or empty");
  call.messages = std::make_shared<Json>(Json::array());
  for (const Json& given : *messages) {
    if (!given.is_object()) refuse("messages", "an entry of 'messages' is not an object");
    Json message = given;
    const auto role = Fields(given).text("role");
    if (!role) refuse("messages", "a message has no 'role'");
    if (*role == "developer") message["role"] = "system";
    const bool has_calls = given.contains("tool_calls") && !given["tool_calls"].is_null();
    if (!given.contains("content") && !has_calls) refuse("messages", "a message has no 'content'");
    message["content"] = given.contains("content") ? content_text(given["content"], "messages") : "";
    open_arguments(message);
    call.messages->push_back(std::move(message));
  }
  if (const Json* values = fields.object("chat_template_kwargs"))
    call.template_values = std::make_shared<Json>(*values);
}

}  // namespace

void read_tools(const Fields& fields, const CallLimits& limits, ChatCall& call) {
  if (const Json* tools = fields.array("tools"); tools && !tools->empty()) {
    if (tools->size() > limits.max_tools)
      refuse("tools", "'tools' has {} entries; at most {} are taken", tools->size(), limits.max_tools);
    for (const Json& tool : *tools) {
      const Json* function = tool.is_object() ? Fields(tool).object("function") : nullptr;
      if (!function) refuse("tools", "an entry of 'tools' has no 'function'; only functions are supported");
      const auto name = Fields(*function).text("name");
      if (!name || name->empty()) refuse("tools", "a function in 'tools' has no 'name'");
      const Json* parameters = Fields(*function).object("parameters");
      call.tool_list.push_back({*name, parameters ? dump_json(*parameters) : R"({"type":"object"})"});
    }
    call.tools = std::make_shared<Json>(*tools);
  }
  call.allows_parallel_calls = fields.boolean("parallel_tool_calls").value_or(true);
  const Json* choice = fields.find("tool_choice");
  using Kind = ToolChoice::Kind;
  if (!choice) return;
  if (choice->is_string()) {
    const auto word = choice->get<std::string>();
    if (word == "none") {
      call.tool_choice.kind = Kind::none;
    } else if (word == "required" || word == "any") {
      call.tool_choice.kind = Kind::required;
    } else if (word != "auto") {
      refuse("tool_choice", "'tool_choice' is '{}'; expected none, auto, required or a function", word.substr(0, 40));
    }
  } else if (choice->is_object()) {
    const Json* function = Fields(*choice).object("function");
    const auto name = Fields(function ? *function : *choice).text("name");
    if (!name) refuse("tool_choice", "'tool_choice' names no function");
    call.tool_choice = {Kind::named, *name};
  } else {
    refuse("tool_choice", "'tool_choice' is neither a word nor a function");
  }
  if (call.tool_choice.kind != Kind::none && call.tool_choice.kind != Kind::automatic && call.tool_list.empty())
    refuse("tool_choice", "'tool_choice' asks for a call, but there are no 'tools'");
  bool is_there = call.tool_choice.kind != Kind::named;
  for (const Tool& tool : call.tool_list) is_there |= tool.name == call.tool_choice.name;
  if (!is_there) refuse("tool_choice", "'tool_choice' names '{}', which is not in 'tools'", call.tool_choice.name);
}

ChatCall read_messages(const Json& body, const CallLimits& limits) {
  const Fields fields(body);
  ChatCall call;
  read_message_list(fields, call);
  read_tools(fields, limits, call);
  call.adds_prompt = fields.boolean("add_generation_prompt").value_or(true);
  call.continues_last = fields.boolean("continue_final_message").value_or(false);
  if (call.continues_last) call.adds_prompt = false;
  return call;
}

ChatCall read_chat_call(const Json& body, const CallLimits& limits) {
  const Fields fields(body);
  ChatCall call = read_messages(body, limits);
  read_common(fields, limits, call);
  for (const char* name : {"functions", "function_call", "audio", "modalities", "web_search_options"})
    fields.refuse_unless(name, nullptr);
  const bool wants = fields.boolean("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", 0, limits.max_logprobs);
  if (top && !wants) refuse("top_logprobs", "'top_logprobs' needs 'logprobs': true");
  if (wants) call.logprobs = static_cast<int32_t>(top.value_or(0));
  return call;
}

}  // namespace sinter::server

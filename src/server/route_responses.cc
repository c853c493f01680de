// /v1/responses, without memory between calls: each brings its whole conversation.
#include <nlohmann/json.hpp>

#include "server/chat_choice.h"
#include "server/service.h"

namespace sinter::server {
namespace {

void add_input_item(const Json& item, Json& messages) {
  if (!item.is_object()) refuse("input", "an entry of 'input' is not an object");
  const std::string type = Fields(item).text("type").value_or("message");
  if (type == "message") {
    const auto role = Fields(item).text("role");
    if (!role) refuse("input", "a message in 'input' has no 'role'");
    const Json* content = Fields(item).find("content");
    messages.push_back({{"role", *role}, {"content", content ? content_text(*content, "input") : ""}});
  } else if (type == "function_call") {
    Json function{{"name", Fields(item).text("name").value_or("")},
                  {"arguments", Fields(item).text("arguments").value_or("{}")}};
    Json call{
        {"id", Fields(item).text("call_id").value_or("")}, {"type", "function"}, {"function", std::move(function)}};
    messages.push_back({{"role", "assistant"}, {"content", ""}, {"tool_calls", Json::array({call})}});
  } else if (type == "function_call_output") {
    const Json* output = Fields(item).find("output");
    messages.push_back({{"role", "tool"},
                        {"tool_call_id", Fields(item).text("call_id").value_or("")},
                        {"content", output ? content_text(*output, "input") : ""}});
  } else if (type != "reasoning") {
    refuse("input", "'input' has an item of type '{}', which is not supported", type.substr(0, 40));
  }
}

Json to_chat(const Json& body) {
  const Fields fields(body);
  fields.refuse_unless("previous_response_id", nullptr);
  fields.refuse_unless("background", false);
  fields.refuse_unless("conversation", nullptr);
  fields.refuse_unless("top_logprobs", 0);
  fields.refuse_unless("prompt", nullptr);
  Json out = shared_fields(fields, {"background",
                                    "conversation",
                                    "include",
                                    "input",
                                    "instructions",
                                    "max_output_tokens",
                                    "max_tool_calls",
                                    "metadata",
                                    "parallel_tool_calls",
                                    "previous_response_id",
                                    "prompt",
                                    "prompt_cache_key",
                                    "reasoning",
                                    "safety_identifier",
                                    "service_tier",
                                    "store",
                                    "stream_options",
                                    "text",
                                    "tool_choice",
                                    "tools",
                                    "top_logprobs",
                                    "truncation",
                                    "user"});
  if (auto parallel = fields.boolean("parallel_tool_calls")) out["parallel_tool_calls"] = *parallel;
  if (auto most = fields.integer("max_output_tokens", 1, 1 << 24)) out["max_tokens"] = *most;
  out["messages"] = Json::array();
  if (auto text = fields.text("instructions")) out["messages"].push_back({{"role", "system"}, {"content", *text}});
  const Json* input = fields.find("input");
  if (!input) refuse("input", "'input' is missing; expected a text or a list of items");
  if (input->is_string()) {
    out["messages"].push_back({{"role", "user"}, {"content", *input}});
  } else if (input->is_array()) {
    for (const Json& item : *input) add_input_item(item, out["messages"]);
  } else {
    refuse("input", "'input' is neither a text nor a list");
  }
  if (out["messages"].empty()) refuse("input", "'input' has no message");
  if (const Json* tools = fields.array("tools")) {
    for (const Json& tool : *tools) {
      const std::string type = tool.is_object() ? Fields(tool).text("type").value_or("") : "";
      if (type != "function")
        refuse("tools", "'tools' has one of type '{}'; only functions are supported", type.substr(0, 40));
      Json function = tool;
      function.erase("type");
      out["tools"].push_back({{"type", "function"}, {"function", std::move(function)}});
    }
  }
  if (const Json* choice = fields.find("tool_choice")) out["tool_choice"] = *choice;
  if (const Json* text = fields.object("text")) {
    if (const Json* format = Fields(*text).object("format")) {
      const std::string type = Fields(*format).text("type").value_or("text");
      out["response_format"] = {{"type", type}};
      if (type == "json_schema") {
        const Json* schema = Fields(*format).find("schema");
        if (!schema) refuse("text", "'text.format' has no 'schema'");
        out["response_format"]["json_schema"] = {{"schema", *schema}};
      }
    }
  }
  return out;
}

class ResponsesResponder final : public Responder {
 public:
  ResponsesResponder(bool streams, std::string model, const OutputParser::Options& parsing)
      : streams_(streams), model_(std::move(model)), choice_(parsing) {}
  bool streams() const override { return streams_; }

  std::string begin() override {
    std::string out = send("response.created", {{"response", response("in_progress", nullptr)}});
    return out += send("response.in_progress", {{"response", response("in_progress", nullptr)}});
  }

  std::string event(const Delta& delta) override {
    std::string out;
    choice_.push(delta.text, !delta.finish.empty(), [&](const OutputEvent& e) {
      switch (e.kind) {
        case OutputEvent::Kind::content:
          out += open(Part::text);
          open_text_ += e.text;
          out += send("response.output_text.delta", part_fields({{"delta", e.text}}));
          break;
        case OutputEvent::Kind::reasoning:
          out += open(Part::reasoning);
          open_text_ += e.text;
          out += send("response.reasoning_text.delta", part_fields({{"delta", e.text}}));
          break;
        case OutputEvent::Kind::call_begin:
          out += close();
          out += send("response.output_item.added",
                      {{"output_index", items_.size()}, {"item", call_item(choice_.calls.back(), "in_progress")}});
          break;
        case OutputEvent::Kind::call_arguments:
          out +=
              send("response.function_call_arguments.delta",
                   {{"item_id", "fc_" + choice_.calls.back().id}, {"output_index", items_.size()}, {"delta", e.text}});
          break;
        case OutputEvent::Kind::call_end: {
          const ChatChoice::Call& call = choice_.calls.back();
          out += send("response.function_call_arguments.done",
                      {{"item_id", "fc_" + call.id}, {"output_index", items_.size()}, {"arguments", call.arguments}});
          out += end_item(call_item(call, "completed"));
          break;
        }
      }
    });
    if (!delta.finish.empty()) finish_ = delta.finish;
    return out;
  }

  std::string end(const TotalUsage& usage) override {
    std::string out = close();
    const std::string status = finish_ == "length" ? "incomplete" : "completed";
    return out + send("response." + status, {{"response", response(status, usage_of(usage))}});
  }

  std::string whole(const std::vector<ChoiceResult>& results, const TotalUsage& usage) override {
    choice_.read(results[0].text);
    finish_ = results[0].finish;
    if (!choice_.reasoning.empty()) {
      item_id_ = make_id("rs");
      items_.push_back(item(Part::reasoning, "completed", choice_.reasoning));
      item_id_ = make_id("msg");
    }
    if (!choice_.content.empty() || choice_.calls.empty())
      items_.push_back(item(Part::text, "completed", choice_.content));
    for (const ChatChoice::Call& call : choice_.calls) items_.push_back(call_item(call, "completed"));
    return dump_json(response(finish_ == "length" ? "incomplete" : "completed", usage_of(usage)));
  }

  std::string error_event(const ApiError& error) override {
    return send("error", {{"code", openai_error_type(error.status)}, {"message", error.what()}, {"param", nullptr}});
  }
  std::string error_body(const ApiError& error) override { return openai_error_body(error); }

 private:
  std::string send(const std::string& type, Json fields) {
    Json body{{"type", type}, {"sequence_number", sequence_++}};
    body.update(fields);
    return sse(body, type);
  }
  static Json usage_of(const TotalUsage& usage) {
    return {{"input_tokens", usage.prompt_tokens},
            {"input_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
            {"output_tokens", usage.output_tokens},
            {"output_tokens_details", {{"reasoning_tokens", 0}}},
            {"total_tokens", usage.prompt_tokens + usage.output_tokens}};
  }
  Json response(const std::string& status, Json usage) const {
    Json out{{"id", id_}, {"object", "response"}, {"created_at", created_}, {"status", status}, {"model", model_}};
    out["error"] = nullptr;
    out["incomplete_details"] = status == "incomplete" ? Json{{"reason", "max_output_tokens"}} : Json(nullptr);
    out["instructions"] = nullptr;
    out["metadata"] = Json::object();
    out["output"] = items_;
    out["parallel_tool_calls"] = true;
    out["tool_choice"] = "auto";
    out["tools"] = Json::array();
    out["store"] = false;
    out["usage"] = std::move(usage);
    return out;
  }
  // What text stands in: a message, or what the model thought before it.
  enum class Part { none, text, reasoning };
  static Json part(Part kind, const std::string& text) {
    if (kind == Part::reasoning) return {{"type", "reasoning_text"}, {"text", text}};
    return {{"type", "output_text"}, {"text", text}, {"annotations", Json::array()}};
  }
  Json item(Part kind, const std::string& status, const std::string& text) const {
    Json out{{"id", item_id_}, {"type", kind == Part::reasoning ? "reasoning" : "message"}, {"status", status}};
    if (kind == Part::reasoning) {
      out["summary"] = Json::array();
    } else {
      out["role"] = "assistant";
    }
    out["content"] = status == "completed" ? Json::array({part(kind, text)}) : Json::array();
    return out;
  }
  static Json call_item(const ChatChoice::Call& call, const std::string& status) {
    return {{"id", "fc_" + call.id}, {"type", "function_call"},     {"call_id", call.id},
            {"name", call.name},     {"arguments", call.arguments}, {"status", status}};
  }
  Json part_fields(Json more) const {
    Json out{{"item_id", item_id_}, {"output_index", items_.size()}, {"content_index", 0}};
    out.update(more);
    return out;
  }
  // A part of that kind is open afterwards.
  std::string open(Part kind) {
    if (open_ == kind) return "";
    std::string out = close();
    open_ = kind;
    item_id_ = make_id(kind == Part::reasoning ? "rs" : "msg");
    out +=
        send("response.output_item.added", {{"output_index", items_.size()}, {"item", item(kind, "in_progress", "")}});
    return out += send("response.content_part.added", part_fields({{"part", part(kind, "")}}));
  }
  std::string close() {
    if (open_ == Part::none) return "";
    const Part kind = std::exchange(open_, Part::none);
    const std::string text = std::exchange(open_text_, "");
    const std::string type = kind == Part::reasoning ? "response.reasoning_text.done" : "response.output_text.done";
    std::string out = send(type, part_fields({{"text", text}}));
    out += send("response.content_part.done", part_fields({{"part", part(kind, text)}}));
    return out += end_item(item(kind, "completed", text));
  }
  std::string end_item(Json item) {
    const std::string out = send("response.output_item.done", {{"output_index", items_.size()}, {"item", item}});
    items_.push_back(std::move(item));
    return out;
  }

  bool streams_;
  Part open_ = Part::none;
  std::string open_text_;  // of the part that is open
  std::string model_, id_ = make_id("resp"), item_id_ = make_id("msg"), finish_;
  int64_t created_ = unix_time(), sequence_ = 0;
  ChatChoice choice_;
  Json items_ = Json::array();
};

}  // namespace

void Service::responses(const HttpRequest& request, std::shared_ptr<Reply>& reply) {
  ChatCall call = read_chat_call(to_chat(parse_body(request.body)), options_.limits);
  if (call.output.param == "response_format") call.output.param = "text.format";  // as it is called here
  start_chat(call, reply, [&](const ChatPrompt& prompt) {
    return std::make_unique<ResponsesResponder>(call.streams, model_.name, prompt.parsing);
  });
}

}  // namespace sinter::server

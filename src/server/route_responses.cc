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
  Json out = Json::object();
  for (const char* name : {"model", "temperature", "top_p", "stream", "seed", "parallel_tool_calls"}) {
    if (const Json* value = fields.find(name)) out[name] = *value;
  }
  if (const Json* value = fields.find("max_output_tokens")) out["max_tokens"] = *value;
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
      if (type == "json_schema" && Fields(*format).find("schema"))
        out["response_format"]["json_schema"] = {{"schema", (*format)["schema"]}};
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
    return send("response.created", {{"response", response("in_progress", nullptr)}}) +
           send("response.in_progress", {{"response", response("in_progress", nullptr)}});
  }

  std::string event(const Delta& delta) override {
    std::string out;
    for (const OutputEvent& e : choice_.push(delta.text, !delta.finish.empty())) {
      if (e.kind == OutputEvent::Kind::content) {
        if (!is_text_open_) out += open_text();
        out += send("response.output_text.delta", part_fields({{"delta", e.text}}));
      } else if (e.kind == OutputEvent::Kind::call_begin) {
        out += close_text();
        Json item = call_item(choice_.calls.size() - 1, "in_progress");
        out += send("response.output_item.added", {{"output_index", items_.size()}, {"item", item}});
      } else if (e.kind == OutputEvent::Kind::call_arguments) {
        const std::string id = "fc_" + choice_.calls.back().id;
        out += send("response.function_call_arguments.delta",
                    {{"item_id", id}, {"output_index", items_.size()}, {"delta", e.text}});
      } else if (e.kind == OutputEvent::Kind::call_end) {
        const auto& call = choice_.calls.back();
        out += send("response.function_call_arguments.done",
                    {{"item_id", "fc_" + call.id}, {"output_index", items_.size()}, {"arguments", call.arguments}});
        Json item = call_item(choice_.calls.size() - 1, "completed");
        out += send("response.output_item.done", {{"output_index", items_.size()}, {"item", item}});
        items_.push_back(std::move(item));
      }
    }
    if (!delta.finish.empty()) finish_ = delta.finish;
    return out;
  }

  std::string end(const TotalUsage& usage) override {
    std::string out = close_text();
    const std::string status = finish_ == "length" ? "incomplete" : "completed";
    return out + send("response." + status, {{"response", response(status, usage_of(usage))}});
  }

  std::string whole(const std::vector<ChoiceResult>& results, const TotalUsage& usage) override {
    choice_.push(results[0].text, true);
    finish_ = results[0].finish;
    if (!choice_.content.empty() || choice_.calls.empty()) items_.push_back(text_item("completed"));
    for (size_t i = 0; i < choice_.calls.size(); ++i) items_.push_back(call_item(i, "completed"));
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
  Json text_item(const std::string& status) const {
    Json part{{"type", "output_text"}, {"text", text()}, {"annotations", Json::array()}};
    Json item{{"id", message_id_}, {"type", "message"}, {"role", "assistant"}, {"status", status}};
    item["content"] = status == "completed" ? Json::array({part}) : Json::array();
    return item;
  }
  Json call_item(size_t i, const std::string& status) const {
    const auto& call = choice_.calls[i];
    return {{"id", "fc_" + call.id}, {"type", "function_call"},     {"call_id", call.id},
            {"name", call.name},     {"arguments", call.arguments}, {"status", status}};
  }
  std::string text() const { return choice_.content.substr(text_begin_); }
  Json part_fields(Json more) const {
    Json out{{"item_id", message_id_}, {"output_index", items_.size()}, {"content_index", 0}};
    out.update(more);
    return out;
  }
  std::string open_text() {
    is_text_open_ = true;
    Json part{{"type", "output_text"}, {"text", ""}, {"annotations", Json::array()}};
    return send("response.output_item.added", {{"output_index", items_.size()}, {"item", text_item("in_progress")}}) +
           send("response.content_part.added", part_fields({{"part", part}}));
  }
  std::string close_text() {
    if (!is_text_open_) return "";
    is_text_open_ = false;
    Json part{{"type", "output_text"}, {"text", text()}, {"annotations", Json::array()}};
    std::string out = send("response.output_text.done", part_fields({{"text", text()}})) +
                      send("response.content_part.done", part_fields({{"part", part}}));
    Json item = text_item("completed");
    out += send("response.output_item.done", {{"output_index", items_.size()}, {"item", item}});
    items_.push_back(std::move(item));
    text_begin_ = choice_.content.size();
    message_id_ = make_id("msg");
    return out;
  }

  bool streams_, is_text_open_ = false;
  std::string model_, id_ = make_id("resp"), message_id_ = make_id("msg"), finish_;
  int64_t created_ = unix_time(), sequence_ = 0;
  size_t text_begin_ = 0;
  ChatChoice choice_;
  Json items_ = Json::array();
};

}  // namespace

void Service::responses(const HttpRequest& request, std::shared_ptr<Reply>& reply) {
  const ChatCall call = read_chat_call(to_chat(parse_body(request.body)), options_.limits);
  start_chat(call, reply, [&](const ChatPrompt& prompt) {
    return std::make_unique<ResponsesResponder>(call.streams, model_.name, prompt.parsing);
  });
}

}  // namespace sinter::server

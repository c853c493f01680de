// /v1/messages: Anthropic's form of the same chat.
#include <nlohmann/json.hpp>

#include "server/chat_choice.h"
#include "server/service.h"

namespace sinter::server {
namespace {

// Anthropic's messages and tools in OpenAI's form.
Json to_chat(const Json& body) {
  const Fields fields(body);
  fields.refuse_unless("mcp_servers", Json::array());
  Json out = shared_fields(fields, {"container", "max_tokens", "mcp_servers", "messages", "metadata", "service_tier",
                                    "stop_sequences", "system", "thinking", "tool_choice", "tools"});
  const auto most = fields.integer("max_tokens", 1, 1 << 24);
  if (!most) refuse("max_tokens", "'max_tokens' is missing");
  out["max_tokens"] = *most;
  if (fields.find("stop_sequences")) out["stop"] = fields.texts("stop_sequences", 16);
  out["messages"] = Json::array();
  if (const Json* system = fields.find("system"))
    out["messages"].push_back({{"role", "system"}, {"content", content_text(*system, "system")}});
  const Json* messages = fields.array("messages");
  if (!messages || messages->empty()) refuse("messages", "'messages' is missing or empty");
  for (const Json& given : *messages) {
    if (!given.is_object()) refuse("messages", "an entry of 'messages' is not an object");
    const auto role = Fields(given).text("role");
    if (!role || (*role != "user" && *role != "assistant" && *role != "system"))
      refuse("messages", "a message's 'role' is neither user nor assistant");
    Json message{{"role", *role}, {"content", ""}};
    const Json* content = Fields(given).find("content");
    if (!content) refuse("messages", "a message has no 'content'");
    std::string text;
    if (!content->is_array()) text = content_text(*content, "messages");
    for (const Json& part : content->is_array() ? *content : Json::array()) {
      const std::string type = part.is_object() ? Fields(part).text("type").value_or("") : "";
      if (type == "tool_use") {
        Json function{{"name", Fields(part).text("name").value_or("")}};
        function["arguments"] = Fields(part).object("input") ? part["input"] : Json::object();
        message["tool_calls"].push_back(
            {{"id", Fields(part).text("id").value_or("")}, {"type", "function"}, {"function", function}});
      } else if (type == "tool_result") {
        const Json* result = Fields(part).find("content");
        out["messages"].push_back({{"role", "tool"},
                                   {"tool_call_id", Fields(part).text("tool_use_id").value_or("")},
                                   {"content", result ? content_text(*result, "messages") : ""}});
      } else if (type != "thinking" && type != "redacted_thinking") {
        text += content_text(Json::array({part}), "messages");
      }
    }
    message["content"] = text;
    if (!text.empty() || message.contains("tool_calls") || !content->is_array())
      out["messages"].push_back(std::move(message));
  }
  if (const Json* tools = fields.array("tools")) {
    for (const Json& tool : *tools) {
      if (!tool.is_object()) refuse("tools", "an entry of 'tools' is not an object");
      Json function{{"name", Fields(tool).text("name").value_or("")}};
      if (auto text = Fields(tool).text("description")) function["description"] = *text;
      function["parameters"] = Fields(tool).object("input_schema") ? tool["input_schema"] : Json{{"type", "object"}};
      out["tools"].push_back({{"type", "function"}, {"function", std::move(function)}});
    }
  }
  if (const Json* choice = fields.object("tool_choice")) {
    const std::string type = Fields(*choice).text("type").value_or("");
    if (type == "tool") {
      out["tool_choice"] = {{"type", "function"}, {"function", {{"name", Fields(*choice).text("name").value_or("")}}}};
    } else {
      out["tool_choice"] = type == "any" ? "required" : type;
    }
    if (Fields(*choice).boolean("disable_parallel_tool_use").value_or(false)) out["parallel_tool_calls"] = false;
  }
  return out;
}

class MessagesResponder final : public Responder {
 public:
  MessagesResponder(bool streams, std::string model, const OutputParser::Options& parsing, int64_t prompt_tokens)
      : streams_(streams), model_(std::move(model)), choice_(parsing), prompt_tokens_(prompt_tokens) {}
  bool streams() const override { return streams_; }

  std::string begin() override {
    Json message = head();
    message["content"] = Json::array();
    message["stop_reason"] = nullptr;
    message["stop_sequence"] = nullptr;
    message["usage"] = {{"input_tokens", prompt_tokens_}, {"output_tokens", 0}};
    return sse({{"type", "message_start"}, {"message", std::move(message)}}, "message_start");
  }

  std::string event(const Delta& delta) override {
    std::string out;
    choice_.push(delta.text, !delta.finish.empty(), [&](const OutputEvent& e) {
      switch (e.kind) {
        case OutputEvent::Kind::content:
          out += open("text", {{"type", "text"}, {"text", ""}});
          out += block_delta({{"type", "text_delta"}, {"text", e.text}});
          break;
        case OutputEvent::Kind::reasoning:
          out += open("thinking", {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}});
          out += block_delta({{"type", "thinking_delta"}, {"thinking", e.text}});
          break;
        case OutputEvent::Kind::call_begin:
          out += close();
          out += open(
              "tool_use",
              {{"type", "tool_use"}, {"id", choice_.calls.back().id}, {"name", e.text}, {"input", Json::object()}});
          break;
        case OutputEvent::Kind::call_arguments:
          out += block_delta({{"type", "input_json_delta"}, {"partial_json", e.text}});
          break;
        case OutputEvent::Kind::call_end:
          out += close();
          break;
      }
    });
    if (!delta.finish.empty()) {
      finish_ = delta.finish;
      stop_text_ = delta.stop_text;
    }
    return out;
  }

  std::string end(const TotalUsage& usage) override {
    std::string out = close();
    Json delta{{"stop_reason", stop_reason()}, {"stop_sequence", stop_sequence()}};
    Json body{
        {"type", "message_delta"}, {"delta", std::move(delta)}, {"usage", {{"output_tokens", usage.output_tokens}}}};
    return out + sse(body, "message_delta") + sse({{"type", "message_stop"}}, "message_stop");
  }

  std::string whole(const std::vector<ChoiceResult>& results, const TotalUsage& usage) override {
    choice_.read(results[0].text);
    finish_ = results[0].finish;
    stop_text_ = results[0].stop_text;
    Json body = head();
    body["content"] = Json::array();
    if (!choice_.reasoning.empty())
      body["content"].push_back({{"type", "thinking"}, {"thinking", choice_.reasoning}, {"signature", ""}});
    if (!choice_.content.empty() || choice_.calls.empty())
      body["content"].push_back({{"type", "text"}, {"text", choice_.content}});
    for (const auto& call : choice_.calls) {
      Json input = Json::parse(call.arguments, nullptr, false);
      if (input.is_discarded()) input = Json::object();
      body["content"].push_back(
          {{"type", "tool_use"}, {"id", call.id}, {"name", call.name}, {"input", std::move(input)}});
    }
    body["stop_reason"] = stop_reason();
    body["stop_sequence"] = stop_sequence();
    body["usage"] = {{"input_tokens", usage.prompt_tokens},
                     {"output_tokens", usage.output_tokens},
                     {"cache_read_input_tokens", usage.cached_tokens}};
    return dump_json(body);
  }

  std::string error_event(const ApiError& error) override {
    return "event: error\ndata: " + anthropic_error_body(error) + "\n\n";
  }
  std::string error_body(const ApiError& error) override { return anthropic_error_body(error); }

 private:
  Json head() const { return {{"id", id_}, {"type", "message"}, {"role", "assistant"}, {"model", model_}}; }
  std::string stop_reason() const {
    if (!choice_.calls.empty() && finish_ == "stop") return "tool_use";
    if (finish_ == "length") return "max_tokens";
    return stop_text_.empty() ? "end_turn" : "stop_sequence";
  }
  Json stop_sequence() const { return stop_reason() == "stop_sequence" ? Json(stop_text_) : Json(nullptr); }
  // A block of that kind is open afterwards.
  std::string open(const std::string& kind, Json block) {
    if (open_ == kind && kind != "tool_use") return "";
    std::string out = close();
    open_ = kind;
    return out + sse({{"type", "content_block_start"}, {"index", index_}, {"content_block", std::move(block)}},
                     "content_block_start");
  }
  std::string close() {
    if (open_.empty()) return "";
    open_.clear();
    return sse({{"type", "content_block_stop"}, {"index", index_++}}, "content_block_stop");
  }
  std::string block_delta(Json delta) const {
    return sse({{"type", "content_block_delta"}, {"index", index_}, {"delta", std::move(delta)}},
               "content_block_delta");
  }

  bool streams_;
  std::string model_, id_ = make_id("msg"), open_, finish_, stop_text_;
  int index_ = 0;
  ChatChoice choice_;
  int64_t prompt_tokens_;
};

}  // namespace

void Service::messages(const HttpRequest& request, std::shared_ptr<Reply>& reply) {
  const ChatCall call = read_chat_call(to_chat(parse_body(request.body)), options_.limits);
  start_chat(call, reply, [&](const ChatPrompt& prompt) {
    return std::make_unique<MessagesResponder>(call.streams, model_.name, prompt.parsing,
                                               static_cast<int64_t>(prompt.ids.size()));
  });
}

void Service::count_tokens(const HttpRequest& request, std::shared_ptr<Reply>& reply) {
  Json body = parse_body(request.body);
  body["max_tokens"] = 1;
  const ChatCall call = read_chat_call(to_chat(body), options_.limits);
  reply->send(200, "application/json", dump_json({{"input_tokens", make_chat_prompt(call).ids.size()}}));
}

}  // namespace sinter::server

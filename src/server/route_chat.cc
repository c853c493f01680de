// /v1/chat/completions
#include <nlohmann/json.hpp>

#include "server/chat_choice.h"
#include "server/logprobs.h"
#include "server/service.h"

namespace sinter::server {
namespace {

class ChatResponder final : public Responder {
 public:
  ChatResponder(const ChatCall& call, std::string model, const tokenizer::Tokenizer& tokenizer,
                const OutputParser::Options& parsing)
      : call_(call), model_(std::move(model)), tokenizer_(tokenizer) {
    for (int i = 0; i < call.n; ++i) choices_.emplace_back(parsing);
  }

  bool streams() const override { return call_.streams; }

  std::string begin() override {
    std::string out;
    for (int i = 0; i < call_.n; ++i) out += chunk(i, {{"role", "assistant"}, {"content", ""}}, nullptr, nullptr);
    return out;
  }

  std::string event(const Delta& delta) override {
    ChatChoice& choice = choices_[static_cast<size_t>(delta.index)];
    Json logprobs = nullptr;
    if (call_.logprobs >= 0 && !delta.tokens.empty()) logprobs = {{"content", chat_logprobs(tokenizer_, delta.tokens)}};
    std::string out;
    auto send = [&](Json value) {
      out += chunk(delta.index, std::move(value), std::exchange(logprobs, nullptr), nullptr);
    };
    choice.push(delta.text, !delta.finish.empty(), [&](const OutputEvent& e) {
      switch (e.kind) {
        case OutputEvent::Kind::content:
          send({{"content", e.text}});
          break;
        case OutputEvent::Kind::reasoning:
          send({{"reasoning_content", e.text}});
          break;
        case OutputEvent::Kind::call_begin: {
          Json call{{"index", e.call}, {"id", choice.calls.back().id}, {"type", "function"}};
          call["function"] = {{"name", e.text}, {"arguments", ""}};
          send({{"tool_calls", Json::array({call})}});
          break;
        }
        case OutputEvent::Kind::call_arguments: {
          Json call{{"index", e.call}};
          call["function"] = {{"arguments", e.text}};
          send({{"tool_calls", Json::array({call})}});
          break;
        }
        case OutputEvent::Kind::call_end:
          break;
      }
    });
    if (!logprobs.is_null()) send({{"content", ""}});
    if (!delta.finish.empty()) out += chunk(delta.index, Json::object(), nullptr, choice.finish_reason(delta.finish));
    return out;
  }

  std::string end(const TotalUsage& usage) override {
    std::string out;
    if (call_.includes_usage) {
      Json body = head("chat.completion.chunk");
      body["choices"] = Json::array();
      body["usage"] = usage_json(usage);
      out = sse(body);
    }
    return out + "data: [DONE]\n\n";
  }

  std::string whole(const std::vector<ChoiceResult>& results, const TotalUsage& usage) override {
    Json body = head("chat.completion");
    body["choices"] = Json::array();
    for (size_t i = 0; i < results.size(); ++i) {
      ChatChoice& choice = choices_[i];
      choice.read(results[i].text);
      Json message{{"role", "assistant"}};
      message["content"] = choice.content.empty() && !choice.calls.empty() ? Json(nullptr) : Json(choice.content);
      if (!choice.reasoning.empty()) message["reasoning_content"] = choice.reasoning;
      for (const ChatChoice::Call& call : choice.calls) {
        Json entry{{"id", call.id}, {"type", "function"}};
        entry["function"] = {{"name", call.name}, {"arguments", call.arguments}};
        message["tool_calls"].push_back(std::move(entry));
      }
      Json entry{{"index", i}, {"message", std::move(message)}};
      entry["logprobs"] = nullptr;
      if (call_.logprobs >= 0) entry["logprobs"] = {{"content", chat_logprobs(tokenizer_, results[i].tokens)}};
      entry["finish_reason"] = choice.finish_reason(results[i].finish);
      body["choices"].push_back(std::move(entry));
    }
    body["usage"] = usage_json(usage);
    return dump_json(body);
  }

  std::string error_event(const ApiError& error) override { return "data: " + openai_error_body(error) + "\n\n"; }
  std::string error_body(const ApiError& error) override { return openai_error_body(error); }

 private:
  Json head(const char* object) const {
    return {{"id", id_}, {"object", object}, {"created", created_}, {"model", model_}};
  }

  std::string chunk(int index, Json delta, Json logprobs, Json finish) const {
    Json body = head("chat.completion.chunk");
    Json choice{{"index", index}, {"delta", std::move(delta)}};
    choice["logprobs"] = std::move(logprobs);
    choice["finish_reason"] = std::move(finish);
    body["choices"] = Json::array({choice});
    return sse(body);
  }

  ChatCall call_;
  std::string model_, id_ = make_id("chatcmpl");
  int64_t created_ = unix_time();
  const tokenizer::Tokenizer& tokenizer_;
  std::vector<ChatChoice> choices_;
};

}  // namespace

void Service::chat(const HttpRequest& request, std::shared_ptr<Reply>& reply) {
  ChatCall call = read_chat_call(parse_body(request.body), options_.limits);
  start_chat(call, reply, [&](const ChatPrompt& prompt) {
    return std::make_unique<ChatResponder>(call, model_.name, *model_.tokenizer, prompt.parsing);
  });
}

}  // namespace sinter::server

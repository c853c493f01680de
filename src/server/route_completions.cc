// /v1/completions
#include <nlohmann/json.hpp>

#include "engine/prompt.h"
#include "server/logprobs.h"
#include "server/service.h"

namespace sinter::server {
namespace {

class CompletionResponder final : public Responder {
 public:
  struct Echo {
    std::string text;
    std::vector<int32_t> ids;
  };
  CompletionResponder(const CompletionCall& call, std::string model, const tokenizer::Tokenizer& tokenizer,
                      std::vector<Echo> echoes)
      : call_(call), model_(std::move(model)), tokenizer_(tokenizer), echoes_(std::move(echoes)) {}

  bool streams() const override { return call_.streams; }

  std::string event(const Delta& delta) override {
    if (delta.text.empty() && delta.finish.empty() && call_.logprobs < 0) return "";
    Json choice{{"index", delta.index}, {"text", delta.text}};
    choice["logprobs"] =
        call_.logprobs >= 0 ? completion_logprobs(tokenizer_, delta.tokens, {}, offset_[delta.index]) : Json(nullptr);
    choice["finish_reason"] = delta.finish.empty() ? Json(nullptr) : Json(delta.finish);
    Json body = head();
    body["choices"] = Json::array({choice});
    return sse(body);
  }

  std::string end(const TotalUsage& usage) override {
    std::string out;
    if (call_.includes_usage) {
      Json body = head();
      body["choices"] = Json::array();
      body["usage"] = usage_json(usage);
      out = sse(body);
    }
    return out + "data: [DONE]\n\n";
  }

  std::string whole(const std::vector<ChoiceResult>& choices, const TotalUsage& usage) override {
    Json body = head();
    body["choices"] = Json::array();
    TotalUsage shown = usage;
    for (size_t i = 0; i < choices.size(); ++i) {
      const Echo& echo = echoes_[i / static_cast<size_t>(call_.n)];
      ChoiceResult result = choices[i];
      if (call_.max_tokens == 0) {  // one was made, since the model must run; none was asked for
        result.text.clear();
        result.tokens.clear();
        result.finish = "length";
        shown.output_tokens = 0;
      }
      Json choice{{"index", i}, {"text", call_.echoes ? echo.text + result.text : result.text}};
      choice["logprobs"] = nullptr;
      if (call_.logprobs >= 0) {
        PromptLogprobs prompt;
        if (call_.echoes) prompt = {echo.ids, choices[i - i % static_cast<size_t>(call_.n)].prompt_tokens};
        int64_t offset = 0;
        choice["logprobs"] = completion_logprobs(tokenizer_, result.tokens, prompt, offset);
      }
      choice["finish_reason"] = result.finish;
      body["choices"].push_back(std::move(choice));
    }
    body["usage"] = usage_json(shown);
    return dump_json(body);
  }

  std::string error_event(const ApiError& error) override { return "data: " + openai_error_body(error) + "\n\n"; }
  std::string error_body(const ApiError& error) override { return openai_error_body(error); }

 private:
  Json head() const { return {{"id", id_}, {"object", "text_completion"}, {"created", created_}, {"model", model_}}; }

  CompletionCall call_;
  std::string model_, id_ = make_id("cmpl");
  int64_t created_ = unix_time();
  const tokenizer::Tokenizer& tokenizer_;
  std::vector<Echo> echoes_;
  std::map<int, int64_t> offset_;
};

}  // namespace

void Service::completions(const HttpRequest& request, std::shared_ptr<Reply>& reply) {
  CompletionCall call = read_completion_call(parse_body(request.body), options_.limits);
  check_model(call.model);
  if (call.max_tokens == 0 && call.streams) refuse("max_tokens", "'max_tokens' is 0; there is nothing to stream");
  std::vector<engine::Request> requests;
  std::vector<CompletionResponder::Echo> echoes;
  if (call.echoes && call.logprobs >= 0) call.prompt_logprobs = call.logprobs;
  const engine::EngineOptions& engine = model_.engine->options();
  const int64_t choices = static_cast<int64_t>(call.prompts.size()) * std::max(call.n, call.best_of);
  if (choices > engine.max_running + engine.max_waiting)  // no waiting would help
    refuse("prompt", "{} prompts make {} choices; this server has {} places: send them in several calls",
           call.prompts.size(), choices, engine.max_running + engine.max_waiting);
  auto mask = make_mask(call.output);
  for (const CallPrompt& prompt : call.prompts) {
    std::vector<int32_t> ids = encode(prompt, "prompt");
    CompletionResponder::Echo echo;
    if (call.echoes) echo = {prompt.is_ids ? model_.tokenizer->decode(ids, true) : prompt.text, ids};
    echoes.push_back(std::move(echo));
    requests.push_back(make_request(call, std::move(ids), 16));
    if (mask) requests.back().mask = mask->clone();
    // Prompts of one call draw different numbers.
    if (requests.size() > 1) requests.back().sampling.seed += requests.size() - 1;
  }
  GenerationOptions options{.skips_special = call.skips_special, .includes_stop = call.includes_stop};
  auto responder = std::make_unique<CompletionResponder>(call, model_.name, *model_.tokenizer, std::move(echoes));
  auto generation = std::make_shared<Generation>(context(), reply, std::move(responder), options);
  generation->start(std::move(requests));
}

}  // namespace sinter::server

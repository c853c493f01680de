// Routes that make no tokens: models, tokenizer, templates, health, metrics, the page.
#include <nlohmann/json.hpp>

#include "server/service.h"

namespace sinter::server {
namespace {
void send_json(const std::shared_ptr<Reply>& reply, const Json& body, int status = 200) {
  reply->send(status, "application/json", dump_json(body));
}
}  // namespace

void Service::models(const HttpRequest& request, std::shared_ptr<Reply>& reply) {
  Json model{{"id", model_.name}, {"object", "model"}, {"created", created_}, {"owned_by", "sinter"}};
  model["max_model_len"] = model_.spec->max_positions > 0
                               ? std::min<int64_t>(model_.spec->max_positions, model_.engine->max_request_tokens())
                               : model_.engine->max_request_tokens();
  model["has_chat_template"] = model_.chat.has_value();
  model["tool_format"] = tool_format_name(tool_format_);
  if (request.path != "/v1/models") {
    check_model(request.path.substr(std::string("/v1/models/").size()));
    send_json(reply, model);
    return;
  }
  Json body{{"object", "list"}};
  body["data"] = Json::array({model});
  send_json(reply, body);
}

void Service::tokenize(const HttpRequest& request, std::shared_ptr<Reply>& reply) {
  const Json body = parse_body(request.body);
  const Fields fields(body);
  std::vector<int32_t> ids;
  if (fields.find("messages")) {
    ids = make_chat_prompt(read_messages(body, options_.limits)).ids;
  } else {
    auto text = fields.text("prompt");
    if (!text) text = fields.text("content");
    if (!text) refuse("prompt", "'prompt' is missing; expected a text, or 'messages'");
    const bool add_special =
        fields.boolean("add_special_tokens").value_or(fields.boolean("add_special").value_or(true));
    ids = model_.tokenizer->encode(*text, {.parse_special = true, .add_special = add_special});
  }
  Json out{{"count", ids.size()}, {"max_model_len", model_.spec->max_positions}, {"tokens", ids}};
  if (fields.boolean("return_token_strs").value_or(false)) {
    out["token_strs"] = Json::array();
    for (int32_t id : ids) out["token_strs"].push_back(model_.tokenizer->token_text(id));
  }
  send_json(reply, out);
}

void Service::detokenize(const HttpRequest& request, std::shared_ptr<Reply>& reply) {
  const Json body = parse_body(request.body);
  const Fields fields(body);
  if (!fields.find("tokens")) refuse("tokens", "'tokens' is missing; expected a list of token ids");
  const auto ids = fields.ids("tokens", 1 << 22);
  for (int32_t id : ids) {
    if (!model_.tokenizer->has_id(id)) refuse("tokens", "'tokens' has {}, which the tokenizer does not know", id);
  }
  const std::string text = model_.tokenizer->decode(ids, fields.boolean("skip_special_tokens").value_or(false));
  send_json(reply, {{"prompt", text}, {"content", text}});
}

void Service::tokenizer_info(const HttpRequest&, std::shared_ptr<Reply>& reply) {
  const auto& ids = model_.tokenizer->special_ids();
  Json out{{"description", model_.tokenizer->description()}, {"vocab_size", model_.tokenizer->vocab_size()}};
  const std::pair<std::string, int32_t> special[] = {{"bos", ids.bos}, {"eos", ids.eos}, {"pad", ids.pad}};
  for (const auto& [name, id] : special) {
    out[name + "_token"] = id >= 0 ? Json(model_.tokenizer->token_text(id)) : Json(nullptr);
    out[name + "_token_id"] = id >= 0 ? Json(id) : Json(nullptr);
  }
  out["stop_token_ids"] = stop_tokens_;
  out["chat_template"] = model_.chat ? Json(model_.chat->source(model_.chat->names()[0])) : Json(nullptr);
  send_json(reply, out);
}

void Service::apply_template(const HttpRequest& request, std::shared_ptr<Reply>& reply) {
  const ChatPrompt prompt = make_chat_prompt(read_messages(parse_body(request.body), options_.limits));
  send_json(reply, {{"prompt", prompt.text}, {"tokens", prompt.ids}});
}

void Service::health(const HttpRequest&, std::shared_ptr<Reply>& reply) {
  const std::string error = model_.loop->error();
  if (!error.empty()) throw ApiError(503, "the engine has stopped: " + error);
  send_json(reply, {{"status", "ok"}});
}

// Whether requests are served: steps come, and no shutdown has begun.
void Service::ready(const HttpRequest&, std::shared_ptr<Reply>& reply) {
  if (is_draining_) throw ApiError(503, "the server shuts down");
  const std::string error = model_.loop->error();
  if (!error.empty()) throw ApiError(503, "the engine has stopped: " + error);
  if (!model_.loop->is_alive(options_.ready_seconds))
    throw ApiError(503,
                   fmt::format("the engine has made no step for {} s though there is work", options_.ready_seconds));
  send_json(reply, {{"status", "ready"}});
}

void Service::metrics_text(const HttpRequest&, std::shared_ptr<Reply>& reply) {
  reply->send(200, "text/plain; version=0.0.4", metrics_.text(model_.engine->stats()));
}

// The same numbers as JSON, for the page's charts.
void Service::stats(const HttpRequest&, std::shared_ptr<Reply>& reply) {
  const engine::EngineStats s = model_.engine->stats();
  send_json(reply, {{"steps", s.num_steps},
                    {"running", s.running},
                    {"waiting", s.waiting},
                    {"prompt_tokens", s.prompt_tokens},
                    {"cached_tokens", s.cached_tokens},
                    {"output_tokens", s.output_tokens},
                    {"preemptions", s.preemptions},
                    {"refused", s.refused},
                    {"kv_blocks", s.kv_blocks},
                    {"kv_blocks_used", s.kv_blocks_used},
                    {"kv_blocks_cached", s.kv_blocks_cached},
                    {"kv_slots_used", s.kv_blocks_used * model_.engine->options().block_size},
                    {"kv_tokens_used", s.kv_tokens_used},
                    {"kv_contiguous_slots", s.contiguous_tokens},
                    {"model_seconds", s.model_seconds}});
}

void Service::version(const HttpRequest&, std::shared_ptr<Reply>& reply) { send_json(reply, {{"version", "0.1.0"}}); }

void Service::page(const HttpRequest& request, std::shared_ptr<Reply>& reply) {
  std::string type = "text/html; charset=utf-8";
  if (request.path.ends_with(".js")) type = "text/javascript; charset=utf-8";
  if (request.path.ends_with(".css")) type = "text/css; charset=utf-8";
  if (request.path.ends_with(".svg")) type = "image/svg+xml";
  const std::string policy =
      "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri "
      "'none'; "
      "form-action 'none'; frame-ancestors 'none'";
  reply->send(200, type, std::string(page_file(request.path == "/" ? "/page.html" : request.path)),
              {{"Content-Security-Policy", policy},
               {"X-Content-Type-Options", "nosniff"},
               {"Referrer-Policy", "no-referrer"},
               {"Cache-Control", "no-cache"}});
}

}  // namespace sinter::server

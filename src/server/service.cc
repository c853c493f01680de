#include "server/service.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <random>

#include "base/log.h"
#include "base/text.h"
#include "engine/prompt.h"

namespace sinter::server {
namespace {

// Takes as long for a wrong key as for a right one.
bool is_equal_key(std::string_view a, std::string_view b) {
  unsigned char difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size() && !b.empty(); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i % b.size()]);
  return difference == 0 && !b.empty();
}

std::string_view without_port(std::string_view host) {
  if (host.starts_with('[')) return host.substr(0, host.find(']') + 1);
  return host.substr(0, host.find(':'));
}

}  // namespace

std::string make_id(const std::string& prefix) {
  static std::mutex mutex;
  static std::mt19937_64 random{std::random_device{}()};
  std::lock_guard lock(mutex);
  return fmt::format("{}-{:016x}{:08x}", prefix, random(), static_cast<uint32_t>(random()));
}

int64_t unix_time() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string sse(const Json& value, const std::string& event) {
  return (event.empty() ? "" : "event: " + event + "\n") + "data: " + dump_json(value) + "\n\n";
}

uint64_t Service::draw_seed() {
  thread_local std::mt19937_64 random{std::random_device{}()};
  return random();
}

Service::Service(ServedModel model, ServiceOptions options, Post post)
    : model_(std::move(model)),
      options_(std::move(options)),
      post_(std::move(post)),
      metrics_(model_.name, options_.memory_bytes_per_second),
      created_(unix_time()) {
  stop_tokens_ = engine::stop_tokens(*model_.tokenizer, *model_.spec);
  if (!model_.chat) return;
  for (const std::string& name : model_.chat->names()) {
    const std::string& source = model_.chat->source(name);
    if (tool_format_ == ToolFormat::none) tool_format_ = tool_format_of(source);
    reasons_ |= has_reasoning(source);
  }
  for (const char* marker :
       {"[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "<tool_call>", "</tool_call>", "<think>", "</think>"}) {
    const int32_t id = model_.tokenizer->token_id(marker);
    if (id >= 0 && model_.tokenizer->is_special(id)) marker_tokens_.push_back(id);
  }
}

const std::vector<Service::Route>& Service::routes() {
  using S = Service;
  static const std::vector<Route> kRoutes{
      {"POST", "/v1/completions", Access::user, &S::completions},
      {"POST", "/v1/chat/completions", Access::user, &S::chat},
      {"POST", "/v1/responses", Access::user, &S::responses},
      {"POST", "/v1/messages", Access::user, &S::messages},
      {"POST", "/v1/messages/count_tokens", Access::user, &S::count_tokens},
      {"POST", "/v1/embeddings", Access::user, &S::embeddings},
      {"GET", "/v1/models", Access::user, &S::models},
      {"POST", "/tokenize", Access::user, &S::tokenize},
      {"POST", "/detokenize", Access::user, &S::detokenize},
      {"GET", "/tokenizer_info", Access::user, &S::tokenizer_info},
      {"POST", "/apply-template", Access::user, &S::apply_template},
      {"GET", "/health", Access::open, &S::health},
      {"GET", "/ready", Access::open, &S::ready},
      {"GET", "/metrics", Access::user, &S::metrics_text},
      {"GET", "/stats", Access::user, &S::stats},
      {"GET", "/version", Access::user, &S::version},
      {"POST", "/reset_prefix_cache", Access::admin, &S::reset_prefix_cache},
      {"POST", "/reload_weights", Access::admin, &S::reload_weights},
      {"GET", "/", Access::open, &S::page},
      {"GET", "/page.js", Access::open, &S::page},
      {"GET", "/page.css", Access::open, &S::page},
      {"GET", "/favicon.svg", Access::open, &S::page},
  };
  return kRoutes;
}

std::string Service::route_name(const std::string& path) const {
  for (const Route& route : routes()) {
    if (route.path == path) return path;
  }
  return path.starts_with("/v1/models/") ? "/v1/models/" : "other";
}

Headers Service::cors_headers() const {
  if (options_.cors_origin.empty()) return {};
  return {{"Access-Control-Allow-Origin", options_.cors_origin},
          {"Access-Control-Allow-Headers", "authorization, content-type, x-api-key"},
          {"Access-Control-Allow-Methods", "GET, POST, OPTIONS"}};
}

// A page of another site must not reach a server on the visitor's own machine.
void Service::check_origin(const HttpRequest& request) const {
  const std::string_view host = request.header("host"), origin = request.header("origin");
  const std::string_view name = without_port(host);
  if (options_.is_loopback && !name.empty() && name != "localhost" && name != "127.0.0.1" && name != "[::1]")
    throw ApiError(403, "this server answers only by the names of this machine (localhost, 127.0.0.1)");
  if (origin.empty() || options_.cors_origin == "*" || origin == options_.cors_origin) return;
  const size_t scheme = origin.find("://");
  const bool is_own = scheme != std::string_view::npos && origin.substr(scheme + 3) == host;
  if (!is_own) throw ApiError(403, "requests from other origins are off; see --cors-origin");
}

void Service::check_key(const HttpRequest& request, Access access) const {
  if (access == Access::open) return;
  if (access == Access::user && options_.api_keys.empty()) return;
  if (access == Access::admin && options_.admin_key.empty())
    throw ApiError(403, "this route needs an admin key, and the server has none; see --admin-key-file");
  std::string_view key = request.header("authorization");
  if (key.starts_with("Bearer ") || key.starts_with("bearer ")) key.remove_prefix(7);
  if (key.empty()) key = request.header("x-api-key");
  bool is_right = !options_.admin_key.empty() && is_equal_key(key, options_.admin_key);
  if (access == Access::user) {
    for (const std::string& known : options_.api_keys) is_right |= is_equal_key(key, known);
  }
  if (!is_right)
    throw ApiError(401, "the API key is missing or wrong; send it as 'Authorization: Bearer KEY'", "",
                   "invalid_api_key");
}

void Service::check_model(const std::string& name) const {
  if (name.empty() || name == model_.name || name == "default") return;
  throw ApiError(404, fmt::format("there is no model '{}'; this server has '{}'", name.substr(0, 100), model_.name),
                 "model", "model_not_found");
}

void Service::dispatch(const HttpRequest& request, std::shared_ptr<Reply>& reply) {
  check_origin(request);
  if (request.method == "OPTIONS" && !options_.cors_origin.empty()) {
    reply->send(204, "text/plain", "", cors_headers());
    return;
  }
  const bool is_head = request.method == "HEAD";
  std::string allowed;
  for (const Route& route : routes()) {
    const bool is_model = route.path == "/v1/models" && request.path.starts_with("/v1/models/");
    if (route.path != request.path && !is_model) continue;
    if (route.method == request.method || (is_head && route.method == "GET")) {
      check_key(request, route.access);
      (this->*route.handler)(request, reply);
      return;
    }
    allowed = route.method;
  }
  if (!allowed.empty())
    throw ApiError(405, fmt::format("{} takes {}, not {}", request.path, allowed, request.method.substr(0, 20)));
  check_key(request, Access::user);  // which routes there are is no news for strangers
  std::vector<std::string> paths;
  for (const Route& route : routes()) paths.push_back(route.path);
  throw ApiError(
      404, fmt::format("there is no route {}{}", request.path.substr(0, 100), base::did_you_mean(request.path, paths)));
}

void Service::handle(const HttpRequest& request, std::shared_ptr<Reply> reply) {
  const bool is_anthropic = request.path.starts_with("/v1/messages");
  auto fail = [&](const ApiError& error) {
    Headers headers = cors_headers();
    if (error.retry_after_seconds > 0)
      headers.emplace_back("Retry-After", std::to_string(static_cast<int64_t>(error.retry_after_seconds + 0.999)));
    if (error.status == 401) headers.emplace_back("WWW-Authenticate", "Bearer");
    reply->send(error.status, "application/json", is_anthropic ? anthropic_error_body(error) : openai_error_body(error),
                headers);
  };
  try {
    dispatch(request, reply);
  } catch (const ApiError& e) {
    fail(e);
  } catch (const base::Error& e) {
    fail(ApiError(400, e.what()));
  } catch (const std::exception& e) {
    base::log_error("{} {}: {}", request.method, request.path, e.what());
    fail(ApiError(500, "internal error"));
  }
}

GenerationContext Service::context() { return {model_.loop, model_.tokenizer, &metrics_, post_}; }

engine::Request Service::make_request(const GenerationCall& call, std::vector<int32_t> prompt,
                                      int64_t default_tokens) const {
  engine::Request request;
  const int64_t length = static_cast<int64_t>(prompt.size());
  if (prompt.empty()) refuse("prompt", "the prompt has no tokens");
  for (int32_t id : prompt) {
    if (id >= model_.engine->vocab_size())
      refuse("prompt", "token {} is not in the vocabulary of {} tokens", id, model_.engine->vocab_size());
  }
  int64_t room = std::max<int64_t>(0, model_.engine->max_request_tokens() - length);
  if (model_.spec->max_positions > 0) room = std::min(room, std::max<int64_t>(0, model_.spec->max_positions - length));
  const int64_t wanted = call.max_tokens.value_or(std::min(default_tokens, room));
  if (room == 0 || wanted > room) {
    throw ApiError(
        400,
        fmt::format("the prompt has {} tokens and {} more are asked for, but only {} fit; shorten one of them", length,
                    wanted, length + room),
        "max_tokens", "context_length_exceeded");
  }
  request.prompt = std::move(prompt);
  request.sampling = call.sampling;
  if (!call.has_seed) request.sampling.seed = draw_seed();
  for (const std::string& word : call.bad_words) {
    auto ids = model_.tokenizer->encode(word);
    if (ids.empty()) refuse("bad_words", "'bad_words' has an empty text");
    request.sampling.bad_words.push_back(std::move(ids));
  }
  request.max_new_tokens = std::max<int64_t>(1, wanted);
  request.min_new_tokens = std::min(call.min_tokens, request.max_new_tokens);
  if (!call.ignores_eos) request.stop_tokens = stop_tokens_;
  for (int32_t id : call.stop_ids) {
    if (id >= model_.engine->vocab_size())
      refuse("stop_token_ids", "'stop_token_ids' has the token {}; the vocabulary has {}", id,
             model_.engine->vocab_size());
  }
  request.stop_tokens.insert(request.stop_tokens.end(), call.stop_ids.begin(), call.stop_ids.end());
  request.stop_strings = call.stops;
  request.n = call.n;
  request.best_of = call.best_of;
  request.logprobs = call.logprobs;
  request.prompt_logprobs = call.prompt_logprobs;
  request.priority = call.priority;
  const double seconds = call.max_seconds > 0 ? call.max_seconds : options_.limits.max_seconds;
  request.deadline = engine::Clock::now() + std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
  if (!call.cache_salt.empty()) request.cache_salt = std::hash<std::string>{}(call.cache_salt) | 1;
  return request;
}

std::vector<int32_t> Service::encode(const CallPrompt& prompt, const std::string& param) const {
  std::vector<int32_t> ids =
      prompt.is_ids ? prompt.ids : engine::encode_prompt(*model_.tokenizer, prompt.text, *model_.spec);
  for (int32_t id : ids) {
    if (!model_.tokenizer->has_id(id))
      refuse(param, "'{}' has the token {}, which the tokenizer does not know", param, id);
  }
  return ids;
}

Service::ChatPrompt Service::make_chat_prompt(const ChatCall& call) const {
  if (!model_.chat) {
    throw ApiError(
        400,
        "this model has no chat template, so it cannot read messages; use /v1/completions, or start the server "
        "with --chat-template FILE",
        "messages", "no_chat_template");
  }
  const bool has_tools = call.tools && call.tool_choice.kind != ToolChoice::Kind::none;
  if (has_tools && tool_format_ == ToolFormat::none)
    throw ApiError(400, "this model's chat template has no place for tools", "tools", "tools_not_supported");
  tokenizer::ChatInput input{.messages = tokenizer::jinja::from_json(*call.messages),
                             .add_generation_prompt = call.adds_prompt};
  if (has_tools) input.tools = tokenizer::jinja::from_json(*call.tools);
  if (call.template_values) {
    for (const auto& [key, value] : call.template_values->items())
      input.extra.emplace_back(key, tokenizer::jinja::from_json(value));
  }
  ChatPrompt prompt;
  try {
    prompt.text = model_.chat->render(input);
  } catch (const tokenizer::TemplateError& e) {
    throw ApiError(400, fmt::format("the chat template refuses the messages: {}", e.what()), "messages");
  }
  if (call.continues_last && !call.messages->empty()) {  // cut what the template put behind the last message
    const std::string last = call.messages->back().value("content", "");
    const size_t at = last.empty() ? std::string::npos : prompt.text.rfind(last);
    if (at != std::string::npos) prompt.text.resize(at + last.size());
  }
  prompt.ids = model_.tokenizer->encode(prompt.text, {.parse_special = true});
  prompt.parsing.tools = has_tools ? tool_format_ : ToolFormat::none;
  prompt.parsing.reasons = reasons_;
  std::string tail = prompt.text.substr(prompt.text.size() - std::min<size_t>(32, prompt.text.size()));
  while (!tail.empty() && (tail.back() == '\n' || tail.back() == ' ')) tail.pop_back();
  prompt.parsing.begins_in_thought = reasons_ && tail.ends_with("<think>");
  return prompt;
}

void Service::start_chat(ChatCall call, std::shared_ptr<Reply>& reply,
                         const std::function<std::unique_ptr<Responder>(const ChatPrompt&)>& make_responder) {
  check_model(call.model);
  ChatPrompt prompt = make_chat_prompt(call);
  using Kind = ToolChoice::Kind;
  std::shared_ptr<engine::TokenMask> mask;
  const bool must_call = call.tool_choice.kind == Kind::required || call.tool_choice.kind == Kind::named;
  if (must_call && call.output.kind != StructuredOutput::Kind::none)
    refuse("tool_choice", "a call that must come and '{}' cannot both hold", call.output.param);
  mask = must_call ? make_tool_mask(call, tool_format_) : make_mask(call.output);
  engine::Request request = make_request(call, prompt.ids, INT64_MAX);
  request.mask = std::move(mask);
  GenerationOptions options{.skips_special = call.skips_special, .includes_stop = call.includes_stop};
  if (prompt.parsing.tools != ToolFormat::none || prompt.parsing.reasons) options.kept_special = marker_tokens_;
  options.skips_prompt_space = call.continues_last;
  auto generation = std::make_shared<Generation>(context(), reply, make_responder(prompt), options);
  std::vector<engine::Request> requests;
  requests.push_back(std::move(request));
  generation->start(std::move(requests));
}

}  // namespace sinter::server

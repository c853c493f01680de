// The API: routes, keys, and what stands behind each route. Sockets are http_server.h's, tokens the engine's.
#pragma once
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine_loop.h"
#include "engine/grammar/matcher.h"
#include "server/calls.h"
#include "server/generation.h"
#include "server/http.h"
#include "server/metrics.h"
#include "server/tool_calls.h"
#include "spec/model_spec.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace sinter::server {

struct ServedModel {
  std::string name;  // as clients call it
  const spec::ModelSpec* spec = nullptr;
  const tokenizer::Tokenizer* tokenizer = nullptr;
  std::optional<tokenizer::ChatTemplate> chat;
  engine::Engine* engine = nullptr;
  engine::EngineLoop* loop = nullptr;
  // Puts the weights of a folder ("": the one that is served) in the place of those in use. Throws base::Error, which
  // leaves everything as it was. Empty: cannot be done.
  std::function<void(const std::string& folder)> replace_weights;
};

struct ServiceOptions {
  std::vector<std::string> api_keys;  // empty: no key is asked for
  std::string admin_key;              // empty: the admin routes are off
  std::string cors_origin;            // "" refuses requests from other origins; "*" allows all
  bool is_loopback = true;            // only names of this machine are accepted in Host
  CallLimits limits;
  double memory_bytes_per_second = 0;  // the machine's limit, for /metrics; 0: not known
  double ready_seconds = 30;           // without a step while there is work: not ready
};

class Service {
 public:
  Service(ServedModel model, ServiceOptions options, Post post);
  ~Service() { stop(); }
  // Answers, or sees to it that an answer comes. Never throws.
  void handle(const HttpRequest& request, std::shared_ptr<Reply> reply);
  // The route's pattern for metrics: its path, or "other".
  std::string route_name(const std::string& path) const;
  Metrics& metrics() { return metrics_; }
  // From now on /ready says no.
  void set_draining() { is_draining_ = true; }
  // Waits for weights that are being read; nothing is answered afterwards but by handle().
  void stop();

 private:
  enum class Access { open, user, admin };
  struct Route {
    std::string method, path;
    Access access;
    void (Service::*handler)(const HttpRequest&, std::shared_ptr<Reply>&);
  };
  static const std::vector<Route>& routes();
  void dispatch(const HttpRequest& request, std::shared_ptr<Reply>& reply);
  void check_origin(const HttpRequest& request) const;
  void check_key(const HttpRequest& request, Access access) const;
  void check_model(const std::string& name) const;
  Headers cors_headers() const;

  // ---- routes ----
  void completions(const HttpRequest& request, std::shared_ptr<Reply>& reply);
  void chat(const HttpRequest& request, std::shared_ptr<Reply>& reply);
  void responses(const HttpRequest& request, std::shared_ptr<Reply>& reply);
  void messages(const HttpRequest& request, std::shared_ptr<Reply>& reply);
  void count_tokens(const HttpRequest& request, std::shared_ptr<Reply>& reply);
  void embeddings(const HttpRequest& request, std::shared_ptr<Reply>& reply);
  void models(const HttpRequest& request, std::shared_ptr<Reply>& reply);
  void tokenize(const HttpRequest& request, std::shared_ptr<Reply>& reply);
  void detokenize(const HttpRequest& request, std::shared_ptr<Reply>& reply);
  void tokenizer_info(const HttpRequest& request, std::shared_ptr<Reply>& reply);
  void apply_template(const HttpRequest& request, std::shared_ptr<Reply>& reply);
  void health(const HttpRequest& request, std::shared_ptr<Reply>& reply);
  void ready(const HttpRequest& request, std::shared_ptr<Reply>& reply);
  void metrics_text(const HttpRequest& request, std::shared_ptr<Reply>& reply);
  void stats(const HttpRequest& request, std::shared_ptr<Reply>& reply);
  void version(const HttpRequest& request, std::shared_ptr<Reply>& reply);
  void reset_prefix_cache(const HttpRequest& request, std::shared_ptr<Reply>& reply);
  void reload_weights(const HttpRequest& request, std::shared_ptr<Reply>& reply);
  void page(const HttpRequest& request, std::shared_ptr<Reply>& reply);

  // ---- what routes share ----
  struct ChatPrompt {
    std::string text;
    std::vector<int32_t> ids;
    OutputParser::Options parsing;
  };
  // Renders and encodes; throws ApiError where the model has no chat template or the template refuses the messages.
  ChatPrompt make_chat_prompt(const ChatCall& call) const;
  // The engine's request for a prompt; checks room and limits.
  engine::Request make_request(const GenerationCall& call, std::vector<int32_t> prompt, int64_t default_tokens) const;
  // A prompt's tokens; refuses ids that the tokenizer does not know, naming `param`.
  std::vector<int32_t> encode(const CallPrompt& prompt, const std::string& param) const;
  std::shared_ptr<engine::TokenMask> make_mask(const StructuredOutput& output);
  std::shared_ptr<engine::TokenMask> make_tool_mask(const ChatCall& call, ToolFormat format);
  std::shared_ptr<engine::grammar::CompiledGrammar> grammar_for(
      const std::string& key, const std::string& param, const std::function<engine::grammar::Program()>& compile);
  void start_chat(ChatCall call, std::shared_ptr<Reply>& reply,
                  const std::function<std::unique_ptr<Responder>(const ChatPrompt&)>& make_responder);
  GenerationContext context();
  const engine::grammar::TokenBytes& vocabulary();
  static uint64_t draw_seed();

  ServedModel model_;
  ServiceOptions options_;
  Post post_;
  Metrics metrics_;
  ToolFormat tool_format_ = ToolFormat::none;
  bool reasons_ = false;
  std::vector<int32_t> stop_tokens_;
  std::vector<int32_t> marker_tokens_;  // special tokens that begin tool calls
  std::atomic<bool> is_draining_{false};
  int64_t created_ = 0;

  std::mutex reload_mutex_;  // of what follows
  std::thread reload_;
  bool is_reloading_ = false;

  std::mutex grammar_mutex_;
  std::unique_ptr<engine::grammar::TokenBytes> vocabulary_;  // made when it is first needed
  std::list<std::pair<std::string, std::shared_ptr<engine::grammar::CompiledGrammar>>> grammars_;  // latest first
};

// An id such as "chatcmpl-1f0c...".
std::string make_id(const std::string& prefix);
int64_t unix_time();
// "data: ...\n\n", with "event: name" before it where a name is given.
std::string sse(const Json& value, const std::string& event = "");
// The page's parts, made from src/server/page/ when the program is built; "" for an unknown path.
std::string_view page_file(std::string_view path);

}  // namespace sinter::server

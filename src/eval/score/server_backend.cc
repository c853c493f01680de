#include "eval/score/server_backend.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "eval/metrics/filters.h"
#include "io/http_client.h"

namespace sinter::eval {
namespace {

using Json = nlohmann::json;
constexpr int64_t kUsualLength = 2048;

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

class ServerBackend : public ScoringBackend {
 public:
  explicit ServerBackend(const ServerBackendOptions& options) : options_(options) {
    while (options_.url.ends_with('/')) options_.url.pop_back();
    if (options_.url.ends_with("/v1")) options_.url.resize(options_.url.size() - 3);
    io::HttpClient client = connect();
    choose_model(client);
    if (!options_.tokenizer && !options_.uses_chat) learn_tokenizer(client);
  }

  const PairEncoder& encoder() const override { return *encoder_; }
  void score(std::span<const TokenPair> requests, const OnScore& on_score) override;
  void generate(std::span<const GenerationRequest> requests, const OnGeneration& on_result) override;
  ScorerStats stats() const override { return stats_; }

 private:
  io::HttpClient connect() const { return {options_.url, io::with_api_key(options_.api_key)}; }
  Json ask(io::HttpClient& client, const std::string& path, const Json& body) const;
  void choose_model(io::HttpClient& client);
  void learn_tokenizer(io::HttpClient& client);
  void score_some(io::HttpClient& client, std::span<const TokenPair> requests, std::span<const size_t> which,
                  const OnScore& on_score);
  Score read_score(const Json& choice, size_t prompt_tokens, size_t num_scored) const;
  std::string make_body(const GenerationRequest& request, const std::vector<int32_t>& prompt, Json& body) const;
  // `work(client, i)` for every i below count, on as many connections as there may be; the first error is thrown on.
  void in_parallel(size_t count, const std::function<void(io::HttpClient&, size_t)>& work) const;

  ServerBackendOptions options_;
  std::unique_ptr<PairEncoder> encoder_;
  std::unique_ptr<io::HttpClient> tokenizing_;  // the connection for /tokenize
  std::string eos_text_;
  int64_t max_length_ = kUsualLength;
  std::mutex mutex_;
  ScorerStats stats_;
};

Json ServerBackend::ask(io::HttpClient& client, const std::string& path, const Json& body) const {
  const std::string text = client.post_until_answered(path, dump(body));
  Json answer = Json::parse(text, nullptr, false);
  SINTER_CHECK(answer.is_object(), "{}{}: the answer is no JSON object: {}", options_.url, path, text.substr(0, 200));
  return answer;
}

void ServerBackend::choose_model(io::HttpClient& client) {
  const io::HttpAnswer answer = client.get("/v1/models");
  const Json models = Json::parse(answer.body, nullptr, false);
  const bool is_list =
      answer.status == 200 && models.is_object() && models.contains("data") && models["data"].is_array();
  SINTER_CHECK(is_list || !options_.model.empty(), "{}/v1/models answers {} without a list of models; name the model",
               options_.url, answer.status);
  std::vector<std::string> names;
  for (const Json& model : is_list ? models["data"] : Json::array()) {
    const std::string name = model.value("id", "");
    names.push_back(name);
    if (options_.model.empty()) options_.model = name;
    if (name == options_.model && model.contains("max_model_len") && model["max_model_len"].is_number_integer()) {
      max_length_ = model["max_model_len"];
    }
  }
  if (options_.max_length > 0) max_length_ = options_.max_length;
  SINTER_CHECK(!options_.model.empty(), "{} serves no model", options_.url);
  if (!options_.tokenizer) return;
  const auto& ids = options_.tokenizer->special_ids();
  const int32_t eos = ids.eos, prefix = ids.bos >= 0 ? ids.bos : ids.eos;
  if (eos >= 0) eos_text_ = options_.tokenizer->token_text(eos);
  // A request makes one token more than it scores.
  encoder_ = std::make_unique<PairEncoder>(*options_.tokenizer, prefix, max_length_ - 1);
}

void ServerBackend::learn_tokenizer(io::HttpClient& client) {
  const io::HttpAnswer answer = client.get("/tokenizer_info");
  const Json info = Json::parse(answer.body, nullptr, false);
  SINTER_CHECK(answer.status == 200 && info.is_object(),
               "{} has no /tokenizer_info (status {}); name the model's tokenizer with --tokenizer", options_.url,
               answer.status);
  auto text_of = [&](const char* key) {
    return info.contains(key) && info[key].is_string() ? info[key].get<std::string>() : std::string();
  };
  const std::string bos = text_of("bos_token");
  eos_text_ = text_of("eos_token");
  tokenizing_ = std::make_unique<io::HttpClient>(connect());
  auto encode = [this](std::string_view text, bool adds_special) {
    const Json out = ask(*tokenizing_, "/tokenize",
                         {{"model", options_.model}, {"prompt", text}, {"add_special_tokens", adds_special}});
    SINTER_CHECK(out.contains("tokens") && out["tokens"].is_array(), "{}/tokenize: the answer has no list 'tokens'",
                 options_.url);
    return out["tokens"].get<std::vector<int32_t>>();
  };
  const std::string& prefix_text = bos.empty() ? eos_text_ : bos;
  const std::vector<int32_t> prefix = prefix_text.empty() ? std::vector<int32_t>{} : encode(prefix_text, false);
  encoder_ = std::make_unique<PairEncoder>(encode, bos, prefix.size() == 1 ? prefix[0] : -1, max_length_ - 1);
}

void ServerBackend::in_parallel(size_t count, const std::function<void(io::HttpClient&, size_t)>& work) const {
  std::atomic<size_t> next{0};
  std::exception_ptr error;
  std::mutex lock;
  auto run = [&] {
    try {
      io::HttpClient client = connect();
      for (size_t i; (i = next++) < count;) work(client, i);
    } catch (...) {
      const std::lock_guard guard(lock);
      if (!error) error = std::current_exception();
      next = count;
    }
  };
  const size_t num_threads = std::min<size_t>(count, static_cast<size_t>(std::max<int64_t>(options_.concurrency, 1)));
  std::vector<std::thread> threads;
  for (size_t t = 0; t < num_threads; ++t) threads.emplace_back(run);
  for (std::thread& thread : threads) thread.join();
  if (error) std::rethrow_exception(error);
}

Score ServerBackend::read_score(const Json& choice, size_t prompt_tokens, size_t num_scored) const {
  const Json* logprobs = choice.contains("logprobs") && choice["logprobs"].is_object() ? &choice["logprobs"] : nullptr;
  const Json* values = logprobs && logprobs->contains("token_logprobs") ? &(*logprobs)["token_logprobs"] : nullptr;
  SINTER_CHECK(values && values->is_array() && values->size() >= prompt_tokens,
               "{}: the answer has no log-probabilities of the prompt's tokens; the server must know \"echo\" with "
               "\"logprobs\" in /v1/completions, as `sinter serve` does",
               options_.url);
  const Json empty;
  const Json& tops = logprobs->contains("top_logprobs") ? (*logprobs)["top_logprobs"] : empty;
  Score score{0, true};
  for (size_t i = prompt_tokens - num_scored; i < prompt_tokens; ++i) {
    SINTER_CHECK((*values)[i].is_number(), "{}: token {} of a prompt has no log-probability", options_.url, i);
    const double value = (*values)[i];
    score.log_likelihood += value;
    double most = value;
    if (tops.is_array() && i < tops.size() && tops[i].is_object()) {
      for (const auto& [token, other] : tops[i].items()) most = std::max(most, other.get<double>());
    }
    score.is_greedy = score.is_greedy && value == most;
  }
  return score;
}

void ServerBackend::score_some(io::HttpClient& client, std::span<const TokenPair> requests,
                               std::span<const size_t> which, const OnScore& on_score) {
  Json prompts = Json::array();
  for (size_t r : which) {
    std::vector<int32_t> tokens = requests[r].context;
    tokens.insert(tokens.end(), requests[r].continuation.begin(), requests[r].continuation.end());
    const auto room = static_cast<size_t>(max_length_ - 1);
    SINTER_CHECK(requests[r].continuation.size() < room, "a continuation of {} tokens does not fit into {} positions",
                 requests[r].continuation.size(), max_length_);
    if (tokens.size() > room) tokens.erase(tokens.begin(), tokens.end() - static_cast<ptrdiff_t>(room));
    prompts.push_back(std::move(tokens));
  }
  const Json answer = ask(client, "/v1/completions",
                          {{"model", options_.model},
                           {"prompt", prompts},
                           {"temperature", 0},
                           {"max_tokens", 1},
                           {"logprobs", 1},
                           {"seed", 1234},
                           {"echo", true}});
  SINTER_CHECK(answer.contains("choices") && answer["choices"].is_array() && answer["choices"].size() == which.size(),
               "{}: {} prompts were asked and {} answered", options_.url, which.size(),
               answer.contains("choices") ? answer["choices"].size() : 0);
  for (size_t place = 0; place < which.size(); ++place) {
    const Json& choice = answer["choices"][place];
    const size_t index = choice.value("index", place);
    SINTER_CHECK(index < which.size(), "{}: a choice has the index {}", options_.url, index);
    const size_t r = which[index], scored = requests[r].continuation.size();
    const Score score = read_score(choice, prompts[index].size(), scored);
    const std::lock_guard lock(mutex_);
    stats_.input_tokens += static_cast<int64_t>(prompts[index].size());
    stats_.logit_rows += static_cast<int64_t>(scored);
    on_score(r, score);
  }
}

void ServerBackend::score(std::span<const TokenPair> requests, const OnScore& on_score) {
  // In the order of their tokens: what shares a beginning meets it in the server's cache.
  std::vector<size_t> order(requests.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return requests[a].context < requests[b].context; });
  const auto batch = static_cast<size_t>(std::max<int64_t>(options_.batch, 1));
  in_parallel((order.size() + batch - 1) / batch, [&](io::HttpClient& client, size_t i) {
    const size_t begin = i * batch;
    score_some(client, requests, std::span(order).subspan(begin, std::min(batch, order.size() - begin)), on_score);
  });
}

// The body of a request, and the path it goes to.
std::string ServerBackend::make_body(const GenerationRequest& request, const std::vector<int32_t>& prompt,
                                     Json& body) const {
  body = {{"model", options_.model},
          {"max_tokens", request.max_tokens},
          {"temperature", request.temperature},
          {"top_p", request.top_p},
          {"seed", request.seed}};
  std::vector<std::string> stops(request.until.begin(),
                                 request.until.begin() + std::min<ptrdiff_t>(4, std::ssize(request.until)));
  if (!eos_text_.empty() && stops.size() < 4 && !options_.uses_chat) stops.push_back(eos_text_);
  if (!stops.empty()) body["stop"] = stops;
  if (!options_.uses_chat) {
    body["prompt"] = prompt;
    return "/v1/completions";
  }
  body["messages"] = Json::array();
  if (!options_.system.empty()) body["messages"].push_back({{"role", "system"}, {"content", options_.system}});
  body["messages"].push_back({{"role", "user"}, {"content", request.prompt}});
  return "/v1/chat/completions";
}

void ServerBackend::generate(std::span<const GenerationRequest> requests, const OnGeneration& on_result) {
  std::vector<std::vector<int32_t>> prompts(requests.size());  // encoded here: one connection tokenizes
  for (size_t i = 0; i < requests.size() && !options_.uses_chat; ++i) {
    const int64_t room = max_length_ - requests[i].max_tokens;
    SINTER_CHECK(room > 0, "{} new tokens leave no room for a prompt in {} positions: ask for fewer (--max-tokens)",
                 requests[i].max_tokens, max_length_);
    prompts[i] = encoder_->encode(requests[i].prompt);
    if (static_cast<int64_t>(prompts[i].size()) > room) prompts[i].erase(prompts[i].begin(), prompts[i].end() - room);
  }
  in_parallel(requests.size(), [&](io::HttpClient& client, size_t i) {
    Json body;
    const std::string path = make_body(requests[i], prompts[i], body);
    const Json answer = ask(client, path, body);
    const bool has_choice = answer.contains("choices") && answer["choices"].is_array() && !answer["choices"].empty();
    const Json choice = has_choice ? answer["choices"][0] : Json::object();
    const Json& holder = options_.uses_chat && choice.contains("message") ? choice["message"] : choice;
    const char* key = options_.uses_chat ? "content" : "text";
    SINTER_CHECK(holder.contains(key) && holder[key].is_string(), "{}{}: the answer has no text: {}", options_.url,
                 path, dump(answer).substr(0, 200));
    std::vector<std::string> stops = requests[i].until;
    if (!eos_text_.empty()) stops.push_back(eos_text_);
    GenerationResult result;
    result.text = cut_at_stops(holder[key].get<std::string>(), stops);
    result.prompt_tokens = static_cast<int64_t>(prompts[i].size());
    const std::lock_guard lock(mutex_);
    on_result(i, result);
  });
}

}  // namespace

std::unique_ptr<ScoringBackend> make_server_backend(const ServerBackendOptions& options) {
  return std::make_unique<ServerBackend>(options);
}

}  // namespace sinter::eval

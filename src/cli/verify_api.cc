#include "cli/verify_api.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "cli/served_model.h"
#include "eval/golden/golden.h"
#include "eval/score/encode.h"
#include "eval/score/scorer.h"
#include "server/task_queue.h"

namespace sinter::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::vector<fs::path> json_files(const fs::path& folder) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".json") found.push_back(entry.path());
  }
  std::ranges::sort(found);
  return found;
}

// The folder that the evaluation answers beside api/ name for the model.
std::string model_folder(const fs::path& folder, const std::string& name) {
  for (const fs::path& path : json_files(folder)) {
    const Json file = Json::parse(base::read_file(path.string()), nullptr, false);
    const Json* models = file.is_object() && file.contains("models") ? &file["models"] : nullptr;
    if (!models || !models->is_object() || !models->contains(name) || !(*models)[name].contains("folder")) continue;
    return (folder / (*models)[name]["folder"].get<std::string>()).lexically_normal().string();
  }
  base::fail("'{}': no file names the folder of the model '{}' that api/ was captured with", folder.string(), name);
}

ServedModelFlags flags_of(const std::string& model, const std::string& name, const eval::VerifyOptions& options) {
  ServedModelFlags flags{.model = model, .name = name};
  flags.generation.device = options.device.to_string();
  flags.generation.precision = options.compute == core::DType::f32    ? "fp32"
                               : options.compute == core::DType::bf16 ? "bf16"
                                                                      : "fp16";
  flags.engine.max_running = 8;
  return flags;
}

// Text of a token that ends in the middle of a character is written otherwise by every server.
bool is_whole(const std::string& text) { return text.find("\xEF\xBF\xBD") == std::string::npos; }

// What the harness reads from one choice: the sum over the continuation and whether it is the likeliest everywhere. The
// last token is the generated one.
eval::Score read_choice(const Json& choice, size_t context) {
  const Json& logprobs = choice.at("logprobs");
  eval::Score score{.log_likelihood = 0, .is_greedy = true};
  for (size_t i = context; i + 1 < logprobs.at("token_logprobs").size(); ++i) {
    const double own = logprobs["token_logprobs"][i];
    double best = own;
    for (const auto& [token, value] : logprobs.at("top_logprobs")[i].items())
      best = std::max(best, value.get<double>());
    score.log_likelihood += own;
    score.is_greedy = score.is_greedy && own == best;
  }
  return score;
}

// Our routes with one model behind them, and the comparison of what they say.
class Replay {
 public:
  Replay(const std::string& model, const std::string& name, const eval::VerifyOptions& options)
      : open_(flags_of(model, name, options)),
        service_(served(), {}, [this](std::function<void()> task) { tasks_.post(std::move(task)); }) {
    for (int32_t id = 0; id < tokenizer().vocab_size(); ++id) {
      if (tokenizer().is_special(id)) special_texts_.push_back(tokenizer().token_text(id));
    }
  }
  ~Replay() {
    tasks_.stop();
    open_.loop().stop();
  }
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  std::vector<eval::VerifyCheck> verify(const std::string& label, const Json& file);

 private:
  struct Answer {
    int status = 0;
    Json body;
  };

  server::ServedModel served() const {
    server::ServedModel model = open_.served();
    model.chat.emplace(eval::chatml_template(), "chatml");
    return model;
  }
  const tokenizer::Tokenizer& tokenizer() const { return *open_.served().tokenizer; }

  Answer ask(const std::string& method, const std::string& path, const Json& body);
  Answer ask_for(const Json& exchange, const Json& body) {
    return ask(exchange.at("method"), exchange.at("path"), body);
  }
  std::string without_special(std::string text) const;
  void compare(const Json& exchange);
  void compare_text(const std::string& place, const Json& exchange, const std::string& own, const std::string& golden);
  void compare_logprobs(const std::string& place, const Json& own, const Json& golden);
  void compare_sample(const Json& file, const Json& exchange, const Json& sample);
  eval::Score read_pair(const Json& exchange, const eval::TokenPair& pair, const std::string& text);
  void expect_close(double own, double golden) {
    worst_ = std::max(worst_.value_or(0), std::abs(own - golden) / eval::allowed_difference(golden));
  }

  OpenServedModel open_;
  server::TaskQueue tasks_{2};
  server::Service service_;
  std::vector<std::string> special_texts_;
  // Of the file that is looked at.
  std::optional<eval::CaseCounter> answers_, readings_;
  std::optional<double> worst_;  // of log-likelihoods
};

Replay::Answer Replay::ask(const std::string& method, const std::string& path, const Json& body) {
  struct Inbox {
    std::mutex mutex;
    std::condition_variable wake;
    bool is_finished = false;
    Answer answer;
  };
  auto inbox = std::make_shared<Inbox>();
  auto reply = std::make_shared<server::Reply>();
  reply->set_wake([inbox, weak = std::weak_ptr(reply)] {
    const auto own = weak.lock();
    if (!own) return;
    const std::lock_guard lock(inbox->mutex);
    server::Reply::Batch batch = own->take();
    if (batch.has_head) inbox->answer.status = batch.head.status;
    if (!batch.is_finished || inbox->is_finished) return;
    inbox->is_finished = true;
    inbox->answer.body = Json::parse(batch.body, nullptr, false);
    inbox->wake.notify_all();
  });
  server::HttpRequest request{.method = method, .path = path, .body = body.is_null() ? "" : body.dump()};
  tasks_.post([this, request = std::move(request), reply] { service_.handle(request, reply); });
  std::unique_lock lock(inbox->mutex);
  inbox->wake.wait(lock, [&] { return inbox->is_finished; });
  return std::move(inbox->answer);
}

std::string Replay::without_special(std::string text) const {
  for (const std::string& special : special_texts_) {
    for (size_t at = text.find(special); at != std::string::npos; at = text.find(special))
      text.erase(at, special.size());
  }
  return text;
}

// Like other servers ours leaves special tokens out of a text unless it is asked for them; the captured one wrote them.
void Replay::compare_text(const std::string& place, const Json& exchange, const std::string& own,
                          const std::string& golden) {
  answers_->expect(own == without_special(golden), fmt::format("{}: text \"{}\", expected \"{}\"", place, own, golden));
  if (golden == without_special(golden) || exchange.at("request").contains("skip_special_tokens")) return;
  Json asking = exchange;
  asking["request"]["skip_special_tokens"] = false;
  const Answer whole = ask_for(asking, asking["request"]);
  const Json& choice = whole.body.at("choices").at(0);
  const std::string text = choice.contains("message") ? choice["message"].at("content") : choice.at("text");
  answers_->expect(text == golden, fmt::format("{}: with special tokens \"{}\", expected \"{}\"", place, text, golden));
}

void Replay::compare_logprobs(const std::string& place, const Json& own, const Json& golden) {
  const size_t count = golden.at("tokens").size();
  answers_->expect(own.is_object() && own.at("tokens").size() == count, place + ": another number of tokens");
  if (!own.is_object() || own["tokens"].size() != count) return;
  bool is_whole_so_far = true;
  for (size_t i = 0; i < count; ++i) {
    const std::string at = fmt::format("{}, token {}", place, i), token = golden["tokens"][i];
    if (is_whole_so_far)
      answers_->expect(own.at("text_offset").at(i) == golden.at("text_offset").at(i), at + ": another offset");
    is_whole_so_far = is_whole_so_far && is_whole(token);
    if (is_whole(token)) answers_->expect(own["tokens"][i] == token, at + ": another token");
    const Json &mine = own.at("token_logprobs").at(i), &theirs = golden.at("token_logprobs").at(i);
    answers_->expect(mine.is_null() == theirs.is_null(), at + ": null, or not");
    if (mine.is_null() || theirs.is_null()) continue;
    expect_close(mine, theirs);
    const Json &my_top = own.at("top_logprobs").at(i), &their_top = golden.at("top_logprobs").at(i);
    for (const auto& [text, value] : their_top.items()) {
      if (!is_whole(text)) continue;
      answers_->expect(my_top.contains(text), fmt::format("{}: \"{}\" is not among the likeliest", at, text));
      if (my_top.contains(text)) expect_close(my_top[text], value);
    }
  }
}

void Replay::compare(const Json& exchange) {
  const std::string path = exchange.at("path"), method = exchange.at("method");
  const Json &request = exchange.at("request"), &golden = exchange.at("response");
  if (exchange.at("status") != 200) return;  // what the harness was told by a server that lacks the route
  const Answer own = ask(method, path, request);
  answers_->expect(own.status == 200, fmt::format("{} {}: status {}", method, path, own.status));
  if (own.status != 200) return;
  for (const char* key : {"tokens", "prompt", "eos_token", "bos_token", "chat_template"}) {
    if (!golden.contains(key)) continue;
    answers_->expect(own.body.contains(key) && own.body[key] == golden[key],
                     fmt::format("{} {}: {} is {}, expected {}", method, path, key,
                                 own.body.contains(key) ? own.body[key].dump() : "missing", golden[key].dump()));
  }
  if (!golden.contains("choices")) return;
  for (size_t i = 0; i < golden["choices"].size(); ++i) {
    const Json& theirs = golden["choices"][i];
    const std::string place = fmt::format("{}, choice {}", path, i);
    answers_->expect(own.body.at("choices").size() > i, place + ": is missing");
    if (own.body["choices"].size() <= i) return;
    const Json& mine = own.body["choices"][i];
    answers_->expect(mine.at("index") == theirs.at("index"), place + ": another index");
    answers_->expect(mine.at("finish_reason") == theirs.at("finish_reason"), place + ": another finish_reason");
    const bool is_chat = theirs.contains("message");
    compare_text(place, exchange, is_chat ? mine.at("message").at("content") : mine.at("text"),
                 is_chat ? theirs["message"].at("content") : theirs.at("text"));
    if (theirs.contains("logprobs") && theirs["logprobs"].is_object())
      compare_logprobs(place, mine.at("logprobs"), theirs["logprobs"]);
  }
  for (const char* key : {"prompt_tokens", "completion_tokens", "total_tokens"}) {
    if (golden.contains("usage"))
      answers_->expect(own.body.at("usage").at(key) == golden["usage"].at(key), path + ": usage." + key);
  }
}

// Asks for a context and its continuation as the captured request did: as tokens or as text.
eval::Score Replay::read_pair(const Json& exchange, const eval::TokenPair& pair, const std::string& text) {
  Json request = exchange.at("request");
  std::vector<int32_t> ids = pair.context;
  ids.insert(ids.end(), pair.continuation.begin(), pair.continuation.end());
  request["prompt"] = request.at("prompt").is_string() ? Json(text) : Json::array({ids});
  const Answer own = ask_for(exchange, request);
  SINTER_CHECK(own.status == 200, "the server answers a captured request with status {}: {}", own.status,
               own.body.dump());
  return read_choice(own.body.at("choices").at(0), pair.context.size());
}

// Every request of a sample, also those whose exchange was not kept, and what the harness makes of the answer.
void Replay::compare_sample(const Json& file, const Json& exchange, const Json& sample) {
  const int64_t longest = file.at("model_args").value("max_length", int64_t{2048}) - 1;
  const auto& special = tokenizer().special_ids();
  const eval::PairEncoder encoder(  // the harness adds no BOS here
      [&](std::string_view text, bool) { return tokenizer().encode(text, {.parse_special = true}); }, "",
      special.bos >= 0 ? special.bos : special.eos, longest - 1);
  for (size_t i = 0; i < sample.at("arguments").size(); ++i) {
    const Json &arguments = sample["arguments"][i], &golden = sample.at("parsed").at(i).at(0);
    const std::string place = fmt::format("document {}, request {}", sample.at("doc").dump(), i);
    if (golden.is_number()) {
      double sum = 0;
      for (const eval::TokenWindow& window : encoder.encode_rolling(arguments.at(0).get<std::string>()))
        sum += read_pair(exchange, window, "").log_likelihood;
      expect_close(sum, golden);
      readings_->expect(std::abs(sum - golden.get<double>()) <= eval::allowed_difference(golden),
                        fmt::format("{}: {}, expected {}", place, sum, golden.dump()));
    } else if (golden.is_array()) {
      const std::string context = arguments.at(0), continuation = arguments.at(1);
      const eval::Score own = read_pair(exchange, encoder.encode_pair(context, continuation), context + continuation);
      expect_close(own.log_likelihood, golden.at(0));
      readings_->expect(own.is_greedy == golden.at(1).get<bool>(), place + ": greedy differs");
    } else {
      Json request = exchange.at("request");
      const bool is_chat = request.contains("messages");
      const std::string prompt = is_chat ? arguments.at(0).at(0) : arguments.at(0);
      if (is_chat) {
        request["messages"] = Json::parse(prompt);
      } else {
        request["prompt"] = request.at("prompt").is_string()
                                ? Json(prompt)
                                : Json::array({tokenizer().encode(prompt, {.parse_special = true})});
      }
      request["skip_special_tokens"] = false;
      const Answer own = ask_for(exchange, request);
      const Json& choice = own.body.at("choices").at(0);
      const std::string text = is_chat ? choice.at("message").at("content") : choice.at("text");
      readings_->expect(text == golden.get<std::string>(),
                        fmt::format("{}: \"{}\", expected {}", place, text, golden.dump()));
    }
  }
}

std::vector<eval::VerifyCheck> Replay::verify(const std::string& label, const Json& file) {
  answers_.emplace(label + " answers");
  readings_.emplace(label + " as the harness reads them");
  worst_.reset();
  const Json* asking = nullptr;
  for (const Json& exchange : file.at("exchanges")) {
    compare(exchange);
    if (!asking && exchange.at("status") == 200 && exchange.at("path").get<std::string>().starts_with("/v1/"))
      asking = &exchange;
  }
  if (asking) {
    std::map<std::string, bool> seen;  // a task with two filters lists each document twice
    for (const Json& sample : file.at("samples")) {
      if (seen.emplace(sample.dump(), true).second) compare_sample(file, *asking, sample);
    }
  }
  std::vector<eval::VerifyCheck> checks{answers_->check()};
  if (readings_->num_cases() > 0) checks.push_back(readings_->check());
  if (worst_) checks.push_back({label + " log-likelihoods", "of 1e-4 + 1e-5 |ll|", *worst_, 1, ""});
  return checks;
}

}  // namespace

std::vector<eval::VerifyCheck> verify_api(const std::string& folder, const eval::VerifyOptions& options) {
  const fs::path api = fs::path(folder) / "api";
  std::vector<eval::VerifyCheck> checks;
  if (!fs::is_directory(api)) return checks;
  std::map<std::string, std::unique_ptr<Replay>> models;
  for (const fs::path& path : json_files(api)) {
    const std::string label = "api/" + path.stem().string();
    try {
      const Json file = Json::parse(base::read_file(path.string()));
      if (!file.is_object() || !file.contains("exchanges") || !file.contains("model_args")) {
        checks.push_back(eval::not_checked(label, fmt::format("{}.json, which holds no exchanges", label)));
        continue;
      }
      const std::string name = file["model_args"].at("model");
      auto& model = models[name];
      if (!model) model = std::make_unique<Replay>(model_folder(folder, name), name, options);
      std::ranges::move(model->verify(label, file), std::back_inserter(checks));
    } catch (const nlohmann::json::exception& e) {
      base::fail("'{}': {}", path.string(), e.what());
    }
  }
  return checks;
}

}  // namespace sinter::cli

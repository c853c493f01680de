#include "server/batch_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>

#include "base/text.h"

namespace sinter::server {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string>& batch_routes() {
  static const std::vector<std::string> kRoutes{"/v1/chat/completions", "/v1/completions", "/v1/responses",
                                                "/v1/embeddings"};
  return kRoutes;
}

struct Line {
  std::string id, url, body;
};

Line read_line(const std::string& text, const std::string& origin) {
  const Json json = Json::parse(text, nullptr, false);
  SINTER_CHECK(json.is_object(), "{}: not a JSON object", origin);
  auto word = [&](const char* key) {
    SINTER_CHECK(json.contains(key) && json[key].is_string() && !json[key].get<std::string>().empty(),
                 "{}: \"{}\" is missing or no text; expected {{\"custom_id\": \"1\", \"method\": \"POST\", \"url\": "
                 "\"/v1/chat/completions\", \"body\": {{...}}}}",
                 origin, key);
    return json[key].get<std::string>();
  };
  Line line{word("custom_id"), word("url"), {}};
  SINTER_CHECK(word("method") == "POST", "{}: \"method\" is '{}'; expected POST", origin, word("method"));
  const auto& routes = batch_routes();
  SINTER_CHECK(std::find(routes.begin(), routes.end(), line.url) != routes.end(),
               "{}: \"url\" is '{}'; expected one of {}{}", origin, line.url, fmt::join(routes, ", "),
               base::did_you_mean(line.url, routes));
  SINTER_CHECK(json.contains("body") && json["body"].is_object(), "{}: \"body\" is missing or no object", origin);
  SINTER_CHECK(!json["body"].contains("stream") || json["body"]["stream"] != true,
               "{}: \"stream\" is true; answers of a batch are whole", origin);
  line.body = dump_json(json["body"]);
  return line;
}

std::vector<Line> read_input(const std::string& path) {
  std::ifstream file(path);
  SINTER_CHECK(file.good(), "cannot open '{}': {}", path, std::strerror(errno));
  std::vector<Line> lines;
  std::unordered_map<std::string, int64_t> seen;
  std::string text;
  for (int64_t number = 1; std::getline(file, text); ++number) {
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    lines.push_back(read_line(text, fmt::format("{}:{}", path, number)));
    const auto [at, is_new] = seen.emplace(lines.back().id, number);
    SINTER_CHECK(is_new, "{}:{}: \"custom_id\" '{}' was line {}'s; answers could not be told apart", path, number,
                 lines.back().id, at->second);
  }
  SINTER_CHECK(!lines.empty(), "'{}' has no requests", path);
  return lines;
}

// Ids that an earlier run has answered. A last line that was not written whole is cut off.
std::set<std::string> read_answered(const std::string& path, const std::vector<Line>& lines) {
  std::set<std::string> known, answered;
  for (const Line& line : lines) known.insert(line.id);
  if (!fs::is_regular_file(path)) return answered;
  std::ifstream file(path, std::ios::binary);
  SINTER_CHECK(file.good(), "cannot read '{}': {}", path, std::strerror(errno));
  std::string text;
  uintmax_t whole = 0;  // bytes of whole lines
  for (int64_t number = 1; std::getline(file, text); ++number) {
    if (file.eof()) break;  // no newline behind it
    whole += text.size() + 1;
    const Json json = Json::parse(text, nullptr, false);
    const bool is_answer = json.is_object() && json.contains("custom_id") && json["custom_id"].is_string();
    SINTER_CHECK(
        is_answer && known.contains(json["custom_id"].get<std::string>()),
        "'{}' is there already, and its line {} is no answer to a request of this batch; give the answers another "
        "file",
        path, number);
    answered.insert(json["custom_id"].get<std::string>());
  }
  std::error_code error;
  if (whole < fs::file_size(path)) fs::resize_file(path, whole, error);
  SINTER_CHECK(!error, "cannot cut the broken last line of '{}': {}", path, error.message());
  return answered;
}

class Output {
 public:
  explicit Output(const std::string& path) : path_(path), file_(std::fopen(path.c_str(), "a")) {
    SINTER_CHECK(file_, "cannot write '{}': {}", path, std::strerror(errno));
  }
  ~Output() { std::fclose(file_); }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  void write(const std::string& line) {
    const bool is_written = std::fputs((line + "\n").c_str(), file_) >= 0 && std::fflush(file_) == 0;
    SINTER_CHECK(is_written,
                 "cannot write '{}': {}; run the same command again when there is room: it goes on from here", path_,
                 std::strerror(errno));
  }

 private:
  std::string path_;
  std::FILE* file_;
};

// What has been answered, as it comes from other threads. They may come after the run has ended.
struct Inbox {
  struct Answer {
    size_t line;
    int status;
    std::string body;
  };
  std::mutex mutex;
  std::condition_variable wake;
  std::deque<Answer> answers;
};

class Run {
 public:
  Run(Service& service, const Post& post, const BatchFileOptions& options)
      : service_(service), post_(post), options_(options) {}

  BatchFileResult run() {
    lines_ = read_input(options_.input);
    std::error_code error;
    if (fs::equivalent(options_.input, options_.output, error))
      base::fail_usage("'{}' holds the requests; give the answers another file", options_.output);
    const std::set<std::string> answered = read_answered(options_.output, lines_);
    Output output(options_.output);
    for (size_t i = 0; i < lines_.size(); ++i) {
      if (!answered.contains(lines_[i].id)) left_.push_back(i);
    }
    result_.all = static_cast<int64_t>(lines_.size());
    result_.answered_before = result_.all - static_cast<int64_t>(left_.size());
    try {
      work(output);
    } catch (...) {
      cancel();
      throw;
    }
    cancel();
    return result_;
  }

 private:
  void work(Output& output) {
    while (!left_.empty() || !under_way_.empty()) {
      if (options_.stop_reason) result_.stop_reason = options_.stop_reason();
      if (!result_.stop_reason.empty()) return;
      while (!left_.empty() && static_cast<int64_t>(under_way_.size()) < options_.max_under_way) {
        start(left_.front());
        left_.pop_front();
      }
      std::deque<Inbox::Answer> answers;
      {
        std::unique_lock lock(inbox_->mutex);
        inbox_->wake.wait_for(lock, std::chrono::milliseconds(100), [&] { return !inbox_->answers.empty(); });
        answers.swap(inbox_->answers);
      }
      for (const Inbox::Answer& answer : answers) take(answer, output);
    }
  }

  void start(size_t index) {
    auto reply = std::make_shared<Reply>();
    reply->max_pending_bytes = size_t{1} << 30;
    under_way_.emplace(index, reply);
    // The reply wakes whoever waits for it, but keeps nothing alive that keeps it.
    std::weak_ptr<Reply> weak = reply;
    auto status = std::make_shared<int>(0);
    reply->set_wake([inbox = inbox_, weak, status, index] {
      const auto own = weak.lock();
      if (!own) return;
      Reply::Batch batch = own->take();
      if (batch.has_head) *status = batch.head.status;
      if (!batch.is_finished) return;
      {
        const std::lock_guard lock(inbox->mutex);
        inbox->answers.push_back({index, *status, std::move(batch.body)});
      }
      inbox->wake.notify_all();
    });
    HttpRequest request{.method = "POST", .path = lines_[index].url, .body = lines_[index].body};
    post_([this_service = &service_, request = std::move(request), reply] { this_service->handle(request, reply); });
  }

  void take(const Inbox::Answer& answer, Output& output) {
    under_way_.erase(answer.line);
    if (answer.status == 429) {  // the engine's queue is full for now
      left_.push_back(answer.line);
      return;
    }
    Json body = Json::parse(answer.body, nullptr, false);
    const bool is_right = answer.status == 200;
    Json line{{"id", make_id("batch_req")}, {"custom_id", lines_[answer.line].id}};
    line["response"] = {{"status_code", answer.status}, {"request_id", make_id("req")}, {"body", std::move(body)}};
    line["error"] = nullptr;
    output.write(dump_json(line));
    ++result_.answered;
    result_.failed += !is_right;
    if (options_.progress) options_.progress(result_.answered_before + result_.answered, result_.all);
  }

  void cancel() {
    for (auto& [index, reply] : under_way_) reply->close();
    under_way_.clear();
  }

  Service& service_;
  const Post& post_;
  const BatchFileOptions& options_;
  BatchFileResult result_;
  std::vector<Line> lines_;
  std::deque<size_t> left_;
  std::unordered_map<size_t, std::shared_ptr<Reply>> under_way_;
  std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
};

}  // namespace

BatchFileResult run_batch_file(Service& service, const Post& post, const BatchFileOptions& options) {
  return Run(service, post, options).run();
}

}  // namespace sinter::server

#include "eval/results/journal.h"

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"

namespace sinter::eval {
namespace {

using Json = nlohmann::json;

uint64_t hash_tokens(const std::vector<int32_t>& tokens, uint64_t seed) {
  return base::hash_bytes(std::as_bytes(std::span(tokens)), seed);
}

class Journal : public ScoringBackend {
 public:
  Journal(std::unique_ptr<ScoringBackend> backend, const std::string& folder, const std::string& model,
          const std::string& name)
      : backend_(std::move(backend)), seed_(base::hash_text(model)), path_(folder + "/" + name) {
    base::create_folders(folder);
    read();
    file_ = std::fopen(path_.c_str(), "ab");
    SINTER_CHECK(file_, "'{}' cannot be written: {}", path_, std::strerror(errno));
  }
  ~Journal() override { std::fclose(file_); }

  const PairEncoder& encoder() const override { return backend_->encoder(); }
  ScorerStats stats() const override { return backend_->stats(); }

  void score(std::span<const TokenPair> requests, const OnScore& on_score) override {
    std::vector<TokenPair> open;
    std::vector<size_t> places;
    std::vector<uint64_t> keys;
    for (size_t i = 0; i < requests.size(); ++i) {
      const uint64_t key = hash_tokens(requests[i].continuation, hash_tokens(requests[i].context, seed_));
      if (auto found = scores_.find(key); found != scores_.end()) {
        on_score(i, found->second);
        continue;
      }
      open.push_back(requests[i]);
      places.push_back(i);
      keys.push_back(key);
    }
    backend_->score(open, [&](size_t i, const Score& score) {
      scores_[keys[i]] = score;
      append({{"key", keys[i]}, {"ll", score.log_likelihood}, {"greedy", score.is_greedy}});
      on_score(places[i], score);
    });
    std::fflush(file_);
  }

  void generate(std::span<const GenerationRequest> requests, const OnGeneration& on_result) override {
    std::vector<GenerationRequest> open;
    std::vector<size_t> places;
    std::vector<uint64_t> keys;
    for (size_t i = 0; i < requests.size(); ++i) {
      const GenerationRequest& r = requests[i];
      std::string text = fmt::format("{}\n{}\n{}\n{}\n{}", r.prompt, r.max_tokens, r.temperature, r.top_p, r.seed);
      for (const std::string& stop : r.until) text += "\n" + stop;
      const uint64_t key = base::hash_text(text, seed_);
      if (auto found = generations_.find(key); found != generations_.end()) {
        on_result(i, found->second);
        continue;
      }
      open.push_back(r);
      places.push_back(i);
      keys.push_back(key);
    }
    backend_->generate(open, [&](size_t i, const GenerationResult& result) {
      generations_[keys[i]] = result;
      append({{"key", keys[i]}, {"text", result.text}, {"tokens", result.tokens}, {"prompt", result.prompt_tokens}});
      on_result(places[i], result);
    });
    std::fflush(file_);
  }

 private:
  void append(const Json& line) {
    const std::string text = line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
    SINTER_CHECK(std::fwrite(text.data(), 1, text.size(), file_) == text.size(), "'{}' cannot be written: {}", path_,
                 std::strerror(errno));
    if (++num_new_ % 64 == 0) std::fflush(file_);
  }

  void read() {
    if (!std::filesystem::exists(path_)) return;
    const std::string text = base::read_file(path_);
    size_t whole = 0;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = text.find('\n', begin);
      if (end == std::string::npos) break;  // cut off while it was written
      const Json line = Json::parse(text.substr(begin, end - begin), nullptr, false);
      SINTER_CHECK(line.is_object() && line.contains("key"),
                   "'{}': a line at byte {} is damaged; remove the file to "
                   "begin again",
                   path_, begin);
      const uint64_t key = line["key"];
      if (line.contains("ll")) {
        scores_[key] = {line["ll"], line["greedy"]};
      } else {
        generations_[key] = {line["text"], line["tokens"].get<std::vector<int32_t>>(), line["prompt"]};
      }
      begin = whole = end + 1;
    }
    if (whole < text.size()) std::filesystem::resize_file(path_, whole);
  }

  std::unique_ptr<ScoringBackend> backend_;
  uint64_t seed_;
  std::string path_;
  std::FILE* file_ = nullptr;
  int64_t num_new_ = 0;
  std::unordered_map<uint64_t, Score> scores_;
  std::unordered_map<uint64_t, GenerationResult> generations_;
};

}  // namespace

std::unique_ptr<ScoringBackend> make_journal(std::unique_ptr<ScoringBackend> backend, const std::string& folder,
                                             const std::string& model, const std::string& name) {
  return std::make_unique<Journal>(std::move(backend), folder, model, name);
}

}  // namespace sinter::eval

#include "eval/score/ranked.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

namespace sinter::eval {
namespace {

using Json = nlohmann::json;

class RankedBackend : public ScoringBackend {
 public:
  RankedBackend(std::unique_ptr<ScoringBackend> backend, comm::Communicator& comm)
      : backend_(std::move(backend)), comm_(comm) {}

  const PairEncoder& encoder() const override { return backend_->encoder(); }
  ScorerStats stats() const override {
    ScorerStats all = backend_->stats();
    all.input_tokens = comm_.sum(all.input_tokens);
    all.computed_tokens = comm_.sum(all.computed_tokens);
    all.logit_rows = comm_.sum(all.logit_rows);
    return all;
  }

  // Ranges of the requests in the order of their tokens, of about as many tokens each: beginnings stay together.
  void score(std::span<const TokenPair> requests, const OnScore& on_score) override {
    std::vector<size_t> order(requests.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return requests[a].context < requests[b].context; });
    size_t total = 0, before = 0;
    for (const TokenPair& r : requests) total += r.context.size() + r.continuation.size();
    std::vector<TokenPair> own;
    std::vector<size_t> places;
    for (size_t i : order) {
      const size_t rank = std::min<size_t>(before * static_cast<size_t>(comm_.size()) / std::max<size_t>(total, 1),
                                           static_cast<size_t>(comm_.size()) - 1);
      before += requests[i].context.size() + requests[i].continuation.size();
      if (rank != static_cast<size_t>(comm_.rank())) continue;
      own.push_back(requests[i]);
      places.push_back(i);
    }
    Json found = Json::array();
    backend_->score(own, [&](size_t i, const Score& s) {
      found.push_back({places[i], s.log_likelihood, s.is_greedy});
    });
    for (const std::string& text : comm_.gather_texts(found.dump())) {
      for (const Json& one : Json::parse(text)) on_score(one[0], {one[1], one[2]});
    }
  }

  void generate(std::span<const GenerationRequest> requests, const OnGeneration& on_result) override {
    std::vector<GenerationRequest> own;
    std::vector<size_t> places;
    for (size_t i = static_cast<size_t>(comm_.rank()); i < requests.size(); i += static_cast<size_t>(comm_.size())) {
      own.push_back(requests[i]);
      places.push_back(i);
    }
    Json found = Json::array();
    backend_->generate(own, [&](size_t i, const GenerationResult& r) {
      found.push_back({places[i], r.text, r.tokens, r.prompt_tokens});
    });
    const std::string text = found.dump(-1, ' ', false, Json::error_handler_t::replace);
    for (const std::string& part : comm_.gather_texts(text)) {
      for (const Json& one : Json::parse(part)) {
        on_result(one[0], {one[1], one[2].get<std::vector<int32_t>>(), one[3]});
      }
    }
  }

 private:
  std::unique_ptr<ScoringBackend> backend_;
  comm::Communicator& comm_;
};

}  // namespace

std::unique_ptr<ScoringBackend> make_ranked_backend(std::unique_ptr<ScoringBackend> backend, comm::Communicator& comm) {
  return std::make_unique<RankedBackend>(std::move(backend), comm);
}

}  // namespace sinter::eval

#include <algorithm>

#include "base/error.h"
#include "data/text/characters.h"
#include "engine/batch.h"
#include "engine/prompt.h"
#include "eval/metrics/filters.h"
#include "eval/score/backend.h"

namespace sinter::eval {
namespace {

class ModelBackend : public ScoringBackend {
 public:
  ModelBackend(const models::Transformer& model, const tokenizer::Tokenizer& tokenizer,
               const ModelBackendOptions& options)
      : model_(model),
        tokenizer_(tokenizer),
        options_(options),
        encoder_(tokenizer, engine::begin_token(tokenizer, model.spec()),
                 options.scorer.max_length > 0 ? options.scorer.max_length : model.spec().max_positions),
        scorer_(model, options.scorer) {}

  const PairEncoder& encoder() const override { return encoder_; }
  void score(std::span<const TokenPair> requests, const OnScore& on_score) override {
    scorer_.score(requests, on_score);
  }
  void generate(std::span<const GenerationRequest> requests, const OnGeneration& on_result) override;
  ScorerStats stats() const override { return scorer_.stats(); }

 private:
  // A stop text and how many of the last tokens it is looked for in.
  struct Stop {
    std::string text;
    size_t num_tokens;
  };
  std::string decode(std::span<const int32_t> tokens, bool skips_special) const;
  std::vector<Stop> stops_of(const GenerationRequest& request) const;
  engine::Request make_request(const GenerationRequest& request) const;
  std::string eos_text() const;

  const models::Transformer& model_;
  const tokenizer::Tokenizer& tokenizer_;
  ModelBackendOptions options_;
  PairEncoder encoder_;
  Scorer scorer_;
};

std::string ModelBackend::eos_text() const {
  int64_t eos = tokenizer_.special_ids().eos;
  if (eos < 0 && !model_.spec().eos_tokens.empty()) eos = model_.spec().eos_tokens[0];
  return eos >= 0 ? tokenizer_.token_text(static_cast<int32_t>(eos)) : "";
}

// Valid UTF-8. Models have rows behind the tokenizer's last token, to fill up: they have no text.
std::string ModelBackend::decode(std::span<const int32_t> tokens, bool skips_special) const {
  std::vector<int32_t> known(tokens.begin(), tokens.end());
  std::erase_if(known, [&](int32_t token) { return token >= tokenizer_.vocab_size(); });
  return data::to_valid_utf8(tokenizer_.decode(known, skips_special));
}

std::vector<ModelBackend::Stop> ModelBackend::stops_of(const GenerationRequest& request) const {
  std::vector<Stop> stops;
  for (const std::string& text : request.until) {
    if (text.empty()) continue;
    stops.push_back({text, tokenizer_.encode(text, {.parse_special = true}).size() + 2});
  }
  return stops;
}

engine::Request ModelBackend::make_request(const GenerationRequest& request) const {
  engine::Request own;
  own.prompt = encoder_.encode(request.prompt);
  const int64_t room = encoder_.max_length() - request.max_tokens;
  SINTER_CHECK(room > 0,
               "{} new tokens leave no room for a prompt in the model's {} positions: ask for fewer (--max-tokens)",
               request.max_tokens, encoder_.max_length());
  if (static_cast<int64_t>(own.prompt.size()) > room) own.prompt.erase(own.prompt.begin(), own.prompt.end() - room);
  if (own.prompt.empty() && encoder_.prefix_token() >= 0) own.prompt = {encoder_.prefix_token()};
  own.max_new_tokens = request.max_tokens;
  own.sampling.temperature = static_cast<float>(request.temperature);
  own.sampling.top_p = static_cast<float>(request.top_p);
  own.sampling.seed = request.seed;
  own.stop_tokens = engine::stop_tokens(tokenizer_, model_.spec());
  return own;
}

void ModelBackend::generate(std::span<const GenerationRequest> requests, const OnGeneration& on_result) {
  if (requests.empty()) return;
  std::vector<engine::Request> own;
  std::vector<std::vector<Stop>> stops;
  std::vector<std::vector<int32_t>> tokens(requests.size());
  for (const GenerationRequest& request : requests) {
    own.push_back(make_request(request));
    stops.push_back(stops_of(request));
  }
  int64_t longest = 1, total = 0;
  for (const engine::Request& request : own) {
    const int64_t length = static_cast<int64_t>(request.prompt.size()) + request.max_new_tokens;
    longest = std::max(longest, length);
    total += length + 16;
  }
  engine::Engine engine(model_, {.kv_tokens = std::min(total, std::max<int64_t>(2 * longest, 1 << 16)),
                                 .max_running = options_.max_sequences});
  engine::BatchCallbacks callbacks;
  callbacks.on_token = [&](size_t r, int32_t, int32_t token) {
    tokens[r].push_back(token);
    return std::none_of(stops[r].begin(), stops[r].end(), [&](const Stop& stop) {
      const size_t count = std::min(stop.num_tokens, tokens[r].size());
      return decode(std::span(tokens[r]).last(count), false).find(stop.text) != std::string::npos;
    });
  };
  const std::string eos = eos_text();
  callbacks.on_completion = [&](size_t r, int32_t, const engine::Completion& result) {
    GenerationResult out;
    out.tokens = result.tokens;
    out.prompt_tokens = static_cast<int64_t>(own[r].prompt.size());
    std::vector<std::string> all = requests[r].until;
    all.push_back(eos);
    out.text = cut_at_stops(decode(out.tokens, true), all);
    on_result(r, out);
  };
  engine::run_batch(engine, own, callbacks);
}

}  // namespace

std::unique_ptr<ScoringBackend> make_model_backend(const models::Transformer& model,
                                                   const tokenizer::Tokenizer& tokenizer,
                                                   const ModelBackendOptions& options) {
  return std::make_unique<ModelBackend>(model, tokenizer, options);
}

}  // namespace sinter::eval

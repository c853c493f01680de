// What `generate` and `chat` share: flags, opening the model, rates.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/batch.h"
#include "engine/prompt.h"
#include "models/open_model.h"
#include "tokenizer/tokenizer.h"

namespace sinter::cli {

class Command;

struct GenerationFlags {
  engine::SamplingOptions sampling{.temperature = 0.8f, .top_p = 0.95f};
  int64_t max_tokens = 256;
  std::string device = "cpu", precision = "fp32", kv_cache = "auto", tokenizer;
  std::vector<std::string> stops;
  std::string quantize;  // "" or "fp8": at load
  bool ignores_eos = false, is_exact = false, is_batch_invariant = false;
  int threads = 0;  // 0: SINTER_THREADS, or all CPUs
};

// To standard output, whatever bytes it holds.
void print_bytes(std::string_view text);

// The folder itself, or the newest model in it where it is a training run's.
std::string newest_model(const std::string& folder);

void add_generation_flags(Command verb, GenerationFlags& flags);
// Those that say how a model is opened, for every verb that answers requests.
void add_kv_cache_flag(Command verb, std::string& format);  // --kv-cache, core/kv_format.h
void add_model_flags(Command verb, GenerationFlags& flags);
// Throws UsageError naming the value that makes no sense.
void check_generation_flags(const GenerationFlags& flags);
tokenizer::Tokenizer load_tokenizer(const GenerationFlags& flags, const std::string& model);
models::OpenOptions open_options(const GenerationFlags& flags);
// Sets the number of threads too.
models::OpenModel open_for_generation(const GenerationFlags& flags, const std::string& model);
// New tokens are cut to the model's positions where it has a position table. Throws Error where they leave no room.
engine::Request make_request(const GenerationFlags& flags, std::vector<int32_t> prompt, const spec::ModelSpec& spec,
                             const tokenizer::Tokenizer& tokenizer);
// Warns, and says so, where a text of so many tokens went past the positions that rotary embeddings were trained with.
bool warn_past_positions(const spec::ModelSpec& spec, size_t num_tokens, const char* advice);
// "1 token", "2,000 tokens"
std::string counted(int64_t count, const std::string& unit);
// An engine's options for requests that are all known: memory for a good many of them at once, no more.
engine::EngineOptions engine_options(std::span<const engine::Request> requests, const tokenizer::Tokenizer& tokenizer,
                                     const std::string& kv_cache = "auto");
void print_generation_stats(const engine::EngineStats& stats, double seconds);

}  // namespace sinter::cli

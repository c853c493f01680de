// What `generate` and `chat` share: flags, opening the model, rates.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "engine/generator.h"
#include "eval/model.h"
#include "tokenizer/tokenizer.h"

namespace CLI {
class App;
}

namespace sinter::cli {

struct GenerationFlags {
  engine::SamplingOptions sampling{.temperature = 0.8f, .top_p = 0.95f};
  int64_t max_tokens = 256;
  std::string device = "cpu", precision = "fp32", tokenizer;
  bool ignores_eos = false;
};

// Throws Error for a training run's folder, naming the model in it.
void check_model_folder(const std::string& folder);
void add_generation_flags(CLI::App& verb, GenerationFlags& flags);
tokenizer::Tokenizer load_tokenizer(const GenerationFlags& flags, const std::string& model);
eval::OpenModel open_for_generation(const GenerationFlags& flags, const std::string& model);
// Room is cut to the model's positions where it has a position table.
engine::Request make_request(const GenerationFlags& flags, std::vector<int32_t> prompt, const spec::ModelSpec& spec,
                             const tokenizer::Tokenizer& tokenizer);
// The text of new tokens behind a prompt's, special ones left out; bytes that are no UTF-8 stay.
std::string continuation_text(const tokenizer::Tokenizer& tokenizer, std::span<const int32_t> prompt,
                              std::span<const int32_t> tokens);
void print_generation_stats(const engine::GeneratorStats& stats);

}  // namespace sinter::cli

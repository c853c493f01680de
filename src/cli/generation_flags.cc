#include "cli/generation_flags.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>

#include "base/error.h"

namespace sinter::cli {

void add_generation_flags(CLI::App& verb, GenerationFlags& flags) {
  verb.add_option("--max-tokens", flags.max_tokens, "most tokens to generate")->capture_default_str();
  verb.add_option("--temperature", flags.sampling.temperature, "0 = always the likeliest token")->capture_default_str();
  verb.add_option("--top-k", flags.sampling.top_k, "choose among the k likeliest; 0 = all")->capture_default_str();
  verb.add_option("--top-p", flags.sampling.top_p, "choose among the likeliest that together reach p")
      ->capture_default_str();
  verb.add_option("--min-p", flags.sampling.min_p, "drop tokens below this share of the likeliest")
      ->capture_default_str();
  verb.add_option("--seed", flags.sampling.seed, "same seed, same text")->capture_default_str();
  verb.add_option("--device", flags.device, "cpu, cuda or cuda:N")->capture_default_str();
  verb.add_option("--precision", flags.precision, "fp32, bf16 or fp16")->capture_default_str();
  verb.add_option("--tokenizer", flags.tokenizer, "tokenizer file or folder (default: the model's)");
  verb.add_flag("--ignore-eos", flags.ignores_eos, "go on past the end-of-text token");
}

void check_model_folder(const std::string& folder) {
  namespace fs = std::filesystem;
  SINTER_CHECK(fs::exists(fs::path(folder) / "config.json") || !fs::exists(fs::path(folder) / "latest"),
               "'{}' is the folder of a training run; its newest model is '{}'", folder,
               (fs::path(folder) / "latest").string());
}

tokenizer::Tokenizer load_tokenizer(const GenerationFlags& flags, const std::string& model) {
  check_model_folder(model);
  return tokenizer::Tokenizer::load(flags.tokenizer.empty() ? model : flags.tokenizer);
}

eval::OpenModel open_for_generation(const GenerationFlags& flags, const std::string& model) {
  return eval::open_model(model, {core::parse_device(flags.device), eval::parse_precision(flags.precision), false});
}

engine::Request make_request(const GenerationFlags& flags, std::vector<int32_t> prompt, const spec::ModelSpec& spec,
                             const tokenizer::Tokenizer& tokenizer) {
  if (flags.max_tokens < 0) base::fail_usage("max-tokens is {}; expected 0 or more", flags.max_tokens);
  engine::Request request{.prompt = std::move(prompt),
                          .sampling = flags.sampling,
                          .max_new_tokens = flags.max_tokens,
                          .stop_tokens = {},
                          .vocab_limit = tokenizer.vocab_size()};
  if (!flags.ignores_eos) request.stop_tokens = spec.eos_tokens;
  if (spec.learned_positions) {
    const int64_t room = spec.max_positions - static_cast<int64_t>(request.prompt.size());
    SINTER_CHECK(room > 0, "the prompt has {} tokens, but the model only {} positions", request.prompt.size(),
                 spec.max_positions);
    request.max_new_tokens = std::min(request.max_new_tokens, room);
  }
  return request;
}

std::string continuation_text(const tokenizer::Tokenizer& tokenizer, std::span<const int32_t> prompt,
                              std::span<const int32_t> tokens) {
  tokenizer::StreamDecoder decoder(tokenizer, true, tokenizer::StreamDecoder::Invalid::keep);
  decoder.skip(prompt);
  std::string text;
  for (int32_t token : tokens) text += decoder.push(token);
  return text + decoder.finish();
}

void print_generation_stats(const engine::GeneratorStats& stats) {
  std::fprintf(stderr, "%ld prompt tokens, %ld new tokens in %.2f s: %.1f new tokens/s, %ld steps\n",
               stats.prompt_tokens, stats.new_tokens, stats.seconds, double(stats.new_tokens) / stats.seconds,
               stats.num_steps);
}

}  // namespace sinter::cli

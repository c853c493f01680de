#include "cli/generation_flags.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/command.h"

namespace sinter::cli {

void add_generation_flags(Command verb, GenerationFlags& flags) {
  verb.option("--max-tokens", &flags.max_tokens, "most tokens to generate").shows_default();
  verb.option("--temperature", &flags.sampling.temperature, "0 = always the likeliest token").shows_default();
  verb.option("--top-k", &flags.sampling.top_k, "choose among the k likeliest; 0 = all").shows_default();
  verb.option("--top-p", &flags.sampling.top_p, "choose among the likeliest that together reach p").shows_default();
  verb.option("--min-p", &flags.sampling.min_p, "drop tokens below this share of the likeliest").shows_default();
  verb.option("--seed", &flags.sampling.seed, "same seed, same text").shows_default();
  verb.option("--device", &flags.device, "cpu, cuda or cuda:N").shows_default();
  verb.option("--precision", &flags.precision, "fp32, bf16 or fp16").shows_default();
  verb.option("--tokenizer", &flags.tokenizer, "tokenizer file or folder (default: the model's)");
  verb.flag("--ignore-eos", &flags.ignores_eos, "go on past the end-of-text token");
}

void check_generation_flags(const GenerationFlags& flags) {
  engine::check_sampling(flags.sampling);
  constexpr int64_t kMost = int64_t{1} << 40;  // more than any memory holds the keys of, and far from overflowing
  if (flags.max_tokens < 0 || flags.max_tokens > kMost)
    base::fail_usage("max-tokens is {}; expected 0 to {}", flags.max_tokens, kMost);
}

void check_model_folder(const std::string& folder) {
  namespace fs = std::filesystem;
  SINTER_CHECK(fs::is_directory(folder), "'{}' is {}; expected a model folder (config.json, *.safetensors)", folder,
               fs::exists(folder) ? "a file" : "not there");
  SINTER_CHECK(
      fs::exists(fs::path(folder) / "config.json") || !fs::exists(fs::path(folder) / "state" / "index.json"),
      "'{}' is a checkpoint without a model: several ranks write one at the end, and every "
      "checkpoint.export_every steps; start `sinter train` again to have it finish, or on one rank to write it",
      folder);
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

bool has_room(const spec::ModelSpec& spec, size_t prompt_tokens) {
  return !spec.learned_positions || static_cast<int64_t>(prompt_tokens) < spec.max_positions;
}

engine::Request make_request(const GenerationFlags& flags, std::vector<int32_t> prompt, const spec::ModelSpec& spec,
                             const tokenizer::Tokenizer& tokenizer) {
  engine::Request request{.prompt = std::move(prompt),
                          .sampling = flags.sampling,
                          .max_new_tokens = flags.max_tokens,
                          .stop_tokens = {},
                          .vocab_limit = tokenizer.vocab_size()};
  if (!flags.ignores_eos) {
    request.stop_tokens = spec.eos_tokens;
    if (tokenizer.special_ids().eos >= 0) request.stop_tokens.push_back(tokenizer.special_ids().eos);
  }
  const auto num_tokens = static_cast<int64_t>(request.prompt.size());
  SINTER_CHECK(has_room(spec, request.prompt.size()),
               "the prompt has {}, but the model only {}: none is left for new tokens; shorten it",
               counted(num_tokens, "token"), counted(spec.max_positions, "position"));
  if (spec.learned_positions && request.max_new_tokens > spec.max_positions - num_tokens) {
    request.max_new_tokens = spec.max_positions - num_tokens;
    base::log_info("at most {} after a prompt of {}: the model has {}", counted(request.max_new_tokens, "new token"),
                   num_tokens, counted(spec.max_positions, "position"));
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

bool warn_past_positions(const spec::ModelSpec& spec, size_t num_tokens, const char* advice) {
  // Dynamic scaling is made for going on.
  if (spec.learned_positions || spec.rope.kind == spec::RopeKind::dynamic) return false;
  if (static_cast<int64_t>(num_tokens) <= spec.max_positions) return false;
  base::log_warning(
      "the text came to {}, past the {} that the model's config.json names (max_position_embeddings): what stands "
      "beyond may make no sense; {}",
      counted(static_cast<int64_t>(num_tokens), "token"), counted(spec.max_positions, "position"), advice);
  return true;
}

void print_bytes(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); }

std::string counted(int64_t count, const std::string& unit) {
  return fmt::format("{} {}{}", base::format_grouped(count), unit, count == 1 ? "" : "s");
}

void print_generation_stats(const engine::GeneratorStats& stats) {
  std::fprintf(stderr, "%s, %s in %.2f s: %.1f new tokens/s, %s\n",
               counted(stats.prompt_tokens, "prompt token").c_str(), counted(stats.new_tokens, "new token").c_str(),
               stats.seconds, double(stats.new_tokens) / stats.seconds, counted(stats.num_steps, "step").c_str());
}

}  // namespace sinter::cli

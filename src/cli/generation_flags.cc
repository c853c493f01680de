#include "cli/generation_flags.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "base/threads.h"
#include "cli/command.h"
#include "core/kv_format.h"
#include "kernels/choices.h"

namespace sinter::cli {

void add_model_flags(Command verb, GenerationFlags& flags) {
  verb.option("--quantize", &flags.quantize, "fp8: round the linear layers of a plain model folder while it is loaded");
  verb.flag("--batch-invariant", &flags.is_batch_invariant,
            "no request changes another's numbers, and served ones are training's to the bit (GPU; slower: see "
            "docs/cuda.md)");
}

void add_generation_flags(Command verb, GenerationFlags& flags) {
  add_model_flags(verb, flags);
  verb.option("--max-tokens", &flags.max_tokens, "most tokens to generate").shows_default();
  verb.option("--temperature", &flags.sampling.temperature, "0 = always the likeliest token").shows_default();
  verb.option("--top-k", &flags.sampling.top_k, "choose among the k likeliest; 0 = all").shows_default();
  verb.option("--top-p", &flags.sampling.top_p, "choose among the likeliest that together reach p").shows_default();
  verb.option("--min-p", &flags.sampling.min_p, "drop tokens below this share of the likeliest").shows_default();
  verb.option("--typical-p", &flags.sampling.typical_p, "choose among the tokens of most typical surprise")
      .shows_default();
  verb.option("--repetition-penalty", &flags.sampling.repetition_penalty, "against tokens that were there; 1 = off")
      .shows_default();
  verb.option("--presence-penalty", &flags.sampling.presence_penalty, "against tokens of the answer; 0 = off")
      .shows_default();
  verb.option("--frequency-penalty", &flags.sampling.frequency_penalty, "likewise, by how often they are there")
      .shows_default();
  verb.option("--stop", &flags.stops, "end the answer before this text; may be repeated").one_value_each_time();
  verb.option("--seed", &flags.sampling.seed, "same seed, same text").shows_default();
  verb.option("--device", &flags.device, "cpu, cuda or cuda:N").shows_default();
  verb.option("--precision", &flags.precision, "fp32, bf16 or fp16").shows_default();
  add_kv_cache_flag(verb, flags.kv_cache);
  verb.option("--tokenizer", &flags.tokenizer, "tokenizer file or folder (default: the model's)");
  verb.flag("--exact", &flags.is_exact,
            "do not round activations to 8 bits for weights that are quantized: slower (CPU)");
  verb.option("--threads", &flags.threads, "CPU threads for the model (or SINTER_THREADS); default: all")
      .in_range(1, 1024);
  verb.flag("--ignore-eos", &flags.ignores_eos, "go on past the end-of-text token");
}

void add_kv_cache_flag(Command verb, std::string& format) {
  verb.option("--kv-cache", &format, "how keys and values are kept: auto (the precision), q8_0, int8 or fp8")
      .one_of({"auto", "q8_0", "int8", "fp8"})
      .shows_default();
}

void check_generation_flags(const GenerationFlags& flags) {
  engine::check_sampling(flags.sampling);
  core::parse_kv_format(flags.kv_cache);
  constexpr int64_t kMost = int64_t{1} << 40;  // more than any memory holds the keys of, and far from overflowing
  if (flags.max_tokens < 0 || flags.max_tokens > kMost)
    base::fail_usage("max-tokens is {}; expected 0 to {}", flags.max_tokens, kMost);
}

tokenizer::Tokenizer load_tokenizer(const GenerationFlags& flags, const std::string& model) {
  models::check_model_folder(model);
  return tokenizer::Tokenizer::load(flags.tokenizer.empty() ? model : flags.tokenizer);
}

std::string newest_model(const std::string& folder) {
  namespace fs = std::filesystem;
  const fs::path latest = fs::path(folder) / "latest";
  const bool is_run = !fs::exists(fs::path(folder) / "config.json") && fs::exists(latest / "config.json");
  if (!is_run) return folder;
  std::error_code absent;  // "latest" may be a folder of its own
  const fs::path target = fs::read_symlink(latest, absent);
  base::log_info("'{}' is the folder of a training run: taking its newest model, '{}'", folder,
                 (absent ? latest : fs::path(folder) / target).string());
  return latest.string();
}

models::OpenModel open_for_generation(const GenerationFlags& flags, const std::string& model) {
  kernels::allow_integer_products(!flags.is_exact);
  if (flags.threads > 0) base::set_num_threads(flags.threads);
  const core::Device device = core::parse_device(flags.device);
  if (flags.is_batch_invariant) kernels::set_batch_invariant(device);
  return models::open_model(model, open_options(flags));
}

models::OpenOptions open_options(const GenerationFlags& flags) {
  return {.device = core::parse_device(flags.device),
          .compute = models::parse_precision(flags.precision),
          .quantize = models::parse_quantize(flags.quantize),
          .maps = true};
}

engine::Request make_request(const GenerationFlags& flags, std::vector<int32_t> prompt, const spec::ModelSpec& spec,
                             const tokenizer::Tokenizer& tokenizer) {
  engine::Request request{.prompt = std::move(prompt), .sampling = flags.sampling, .max_new_tokens = flags.max_tokens};
  if (!flags.ignores_eos) request.stop_tokens = engine::stop_tokens(tokenizer, spec);
  request.stop_strings = flags.stops;
  const auto num_tokens = static_cast<int64_t>(request.prompt.size());
  SINTER_CHECK(engine::has_room(spec, request.prompt.size()),
               "the prompt has {}, but the model only {}: none is left for new tokens; shorten it",
               counted(num_tokens, "token"), counted(spec.max_positions, "position"));
  const int64_t room = engine::room_for(spec, request.prompt.size(), request.max_new_tokens);
  if (room < request.max_new_tokens) {
    request.max_new_tokens = room;
    base::log_info("at most {} after a prompt of {}: the model has {}", counted(request.max_new_tokens, "new token"),
                   num_tokens, counted(spec.max_positions, "position"));
  }
  return request;
}

bool warn_past_positions(const spec::ModelSpec& spec, size_t num_tokens, const char* advice) {
  if (!engine::is_past_positions(spec, num_tokens)) return false;
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

engine::EngineOptions engine_options(std::span<const engine::Request> requests, const tokenizer::Tokenizer& tokenizer,
                                     const std::string& kv_cache) {
  engine::EngineOptions options{.vocab_limit = tokenizer.vocab_size(),
                                .kv_format = core::parse_kv_format(kv_cache),
                                .keeps_choices = true,
                                .tokenizer = &tokenizer};
  int64_t longest = 1, total = 0;
  for (const engine::Request& r : requests) {
    const int64_t length = static_cast<int64_t>(r.prompt.size()) + r.max_new_tokens;
    longest = std::max(longest, length);
    total += length + options.block_size;
  }
  options.kv_tokens = std::min(total, std::max<int64_t>(2 * longest, 1 << 16));
  return options;
}

void print_generation_stats(const engine::EngineStats& stats, double seconds) {
  std::fprintf(stderr, "%s, %s in %.2f s: %.1f new tokens/s, %s\n",
               counted(stats.prompt_tokens + stats.cached_tokens, "prompt token").c_str(),
               counted(stats.output_tokens, "new token").c_str(), seconds, double(stats.output_tokens) / seconds,
               counted(stats.num_steps, "step").c_str());
}

}  // namespace sinter::cli

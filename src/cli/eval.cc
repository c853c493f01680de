#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/eval_tasks.h"
#include "cli/generation_flags.h"
#include "cli/verbs.h"
#include "data/text_files.h"
#include "engine/prompt.h"
#include "eval/perplexity.h"
#include "tokenizer/tokenizer.h"

namespace sinter::cli {
namespace {

struct Flags {
  std::string model, file, device = "cpu", precision = "fp32", tokenizer, separator = "<|endoftext|>";
  eval::PerplexityOptions options;
  bool reads_documents = false, as_json = false;
};

// The text's tokens, and with --documents the token that ends a document. The separator may be a token of its own (as
// transformers and lm-evaluation-harness read it), or text that stands for EOS, as in training.
std::vector<int32_t> read_tokens(const Flags& flags, const tokenizer::Tokenizer& tokenizer, std::string_view text,
                                 eval::PerplexityOptions& options) {
  constexpr tokenizer::EncodeOptions kEncode{.parse_special = true};
  if (!flags.reads_documents) return tokenizer.encode_parallel(text, kEncode);
  // A piece of ordinary text may be a token too, and then be part of others in the text.
  const int32_t found = tokenizer.token_id(flags.separator), eos = tokenizer.special_ids().eos;
  const int32_t token = found >= 0 && tokenizer.is_special(found) ? found : -1;
  options.separator = token >= 0 ? token : eos;
  SINTER_CHECK(options.separator >= 0, "the tokenizer of '{}' has neither a token '{}' nor EOS: leave out --documents",
               flags.model, flags.separator);
  if (token >= 0 || flags.separator.empty()) return tokenizer.encode_parallel(text, kEncode);
  std::vector<int32_t> tokens;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(flags.separator, begin), text.size());
    const std::vector<int32_t> document = tokenizer.encode_parallel(text.substr(begin, end - begin), kEncode);
    tokens.insert(tokens.end(), document.begin(), document.end());
    if (end < text.size()) tokens.push_back(eos);
    begin = end + flags.separator.size();
  }
  return tokens;
}

// A model that knows nothing of the text has perplexities of hundreds of digits.
std::string perplexity_text(double value) {
  return value < 1e9 ? fmt::format("{:.4f}", value) : fmt::format("{:.4e}", value);
}

void run_perplexity(const Flags& flags) {
  models::check_model_folder(flags.model);
  auto tokenizer = tokenizer::Tokenizer::load(flags.tokenizer.empty() ? flags.model : flags.tokenizer);
  models::OpenModel model = models::open_model(
      flags.model, {core::parse_device(flags.device), models::parse_precision(flags.precision), false});
  std::string text = base::read_file(flags.file == "-" ? "/dev/stdin" : flags.file);
  data::check_is_text(text, flags.file);
  eval::PerplexityOptions options = flags.options;
  const std::vector<int32_t> tokens = read_tokens(flags, tokenizer, text, options);
  SINTER_CHECK(!tokens.empty(), "'{}' has no text; expected some to predict", flags.file);
  const int32_t prefix = engine::begin_token(tokenizer, model.spec);
  if (prefix < 0) {
    base::log_info("'{}' has neither BOS nor EOS: the first token of the text is not predicted", flags.model);
  }
  if (options.context > model.spec.max_positions && !model.spec.learned_positions)
    base::log_warning("--context {} is more than the {} that the model's config.json names (max_position_embeddings)",
                      options.context, counted(model.spec.max_positions, "position"));
  base::ProgressLine line;
  auto start = std::chrono::steady_clock::now();
  eval::PerplexityResult r = eval::perplexity(model, tokens, prefix, options, [&](int64_t done, int64_t total) {
    double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    line.update(fmt::format("perplexity {}/{} tokens, {:.0f} tok/s, ETA {}", done, total, double(done) / seconds,
                            base::format_duration(seconds * double(total - done) / double(done))));
  });
  line.finish();
  if (flags.reads_documents && r.num_documents == 1) {
    base::log_warning("'{}' has no '{}' between documents: --documents reads it as one", flags.file, flags.separator);
  }
  eval::count_text(text, r);
  if (flags.as_json) {
    nlohmann::json j{{"documents", r.num_documents},
                     {"tokens", r.num_tokens},
                     {"words", r.num_words},
                     {"bytes", r.num_bytes},
                     {"loss", r.negative_log_likelihood / double(r.num_tokens)},
                     {"token_perplexity", r.token_perplexity()},
                     {"word_perplexity", r.word_perplexity()},
                     {"byte_perplexity", r.byte_perplexity()},
                     {"bits_per_byte", r.bits_per_byte()},
                     {"tokens_per_second", double(r.num_tokens) / r.seconds}};
    std::printf("%s\n", j.dump(2).c_str());
    return;
  }
  base::Table table({"per", "count", "perplexity", "loss (nats)"});
  auto row = [&](const char* unit, int64_t count, double value) {
    table.add_row({unit, base::format_grouped(count), perplexity_text(value),
                   fmt::format("{:.4f}", r.negative_log_likelihood / double(count))});
  };
  row("token", r.num_tokens, r.token_perplexity());
  row("word", r.num_words, r.word_perplexity());
  row("byte", r.num_bytes, r.byte_perplexity());
  std::printf("%sbits per byte %.4f   (%.0f tokens/s)\n", table.to_string().c_str(), r.bits_per_byte(),
              double(r.num_tokens) / r.seconds);
}

}  // namespace

void add_eval(Command app) {
  const Command verb = app.add_verb("eval", "measure a model on tasks, or how well it predicts a text");
  add_eval_tasks(verb);
  add_eval_comparisons(verb);
  auto flags = std::make_shared<Flags>();
  const Command perplexity = verb.add_verb("perplexity", "how well a model predicts a text file");
  perplexity.option("MODEL", &flags->model, "model folder").required();
  perplexity.option("FILE", &flags->file, "text file, or - for standard input").required();
  perplexity.option("--context", &flags->options.context, "longest window in tokens (default: the model's)")
      .at_least(1);
  perplexity.option("--stride", &flags->options.stride, "tokens predicted per window (default: all of it)").at_least(1);
  perplexity.flag(
      "--documents", &flags->reads_documents,
      "the text is documents (--separator, or EOS, between them): predict each by itself, as a model "
      "trained with data.packing = \"documents\" has seen them; the first token of each is predicted after BOS, or "
      "after EOS where there is none");
  perplexity
      .option("--separator", &flags->separator, "with --documents: what stands between documents, a token or text")
      .shows_default();
  perplexity.option("--tokenizer", &flags->tokenizer, "tokenizer file or folder (default: the model's)");
  perplexity.option("--device", &flags->device, "cpu, cuda or cuda:N").shows_default();
  perplexity.option("--precision", &flags->precision, "fp32, bf16 or fp16").shows_default();
  perplexity.flag("--json", &flags->as_json, "print as JSON");
  perplexity.on_run([flags] { run_perplexity(*flags); });
}

}  // namespace sinter::cli

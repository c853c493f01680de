// `sinter eval kl` and `sinter eval compare`.
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
#include "core/kv_format.h"
#include "eval/kl.h"
#include "eval/results/compare.h"
#include "models/open_model.h"
#include "tokenizer/tokenizer.h"

namespace sinter::cli {
namespace {

struct KlFlags {
  std::string reference, model, file, device = "cpu", precision = "fp32", quantize, kv_cache = "auto";
  eval::KlOptions options;
  bool as_json = false;
};

void run_kl(const KlFlags& flags) {
  models::check_model_folder(flags.reference);
  models::check_model_folder(flags.model);
  const auto tokenizer = tokenizer::Tokenizer::load(flags.reference);
  const models::OpenOptions open{.device = core::parse_device(flags.device),
                                 .compute = models::parse_precision(flags.precision)};
  const models::OpenModel reference = models::open_model(flags.reference, open);
  models::OpenOptions rounded = open;
  rounded.quantize = models::parse_quantize(flags.quantize);
  const models::OpenModel model = models::open_model(flags.model, rounded);
  const std::vector<int32_t> tokens = tokenizer.encode_parallel(base::read_file(flags.file), {.parse_special = true});
  eval::KlOptions options = flags.options;
  options.kv_format = core::parse_kv_format(flags.kv_cache);
  base::ProgressLine line;
  const eval::KlResult r = eval::compare_predictions(
      reference, model, tokens, options,
      [&](int64_t done, int64_t total) { line.update(fmt::format("kl {}/{} tokens", done, total)); });
  line.finish();
  if (flags.as_json) {
    const nlohmann::ordered_json j{{"tokens", r.num_tokens},
                                   {"kl_mean", r.mean_kl},
                                   {"kl_median", r.median_kl},
                                   {"kl_99", r.kl_99},
                                   {"kl_max", r.max_kl},
                                   {"same_top", r.same_top},
                                   {"reference_perplexity", r.reference_perplexity},
                                   {"model_perplexity", r.model_perplexity}};
    std::printf("%s\n", j.dump(2).c_str());
    return;
  }
  std::printf("KL divergence over %s tokens: mean %.6f, median %.6f, 99%% %.6f, largest %.4f nats\n",
              base::format_grouped(r.num_tokens).c_str(), r.mean_kl, r.median_kl, r.kl_99, r.max_kl);
  std::printf("same most likely token: %.3f %%\nperplexity: %.4f (reference %.4f, ratio %.6f)\n", 100 * r.same_top,
              r.model_perplexity, r.reference_perplexity, r.model_perplexity / r.reference_perplexity);
}

struct CompareFlags {
  std::string a, b;
  bool as_json = false;
};

std::string first_few(const std::vector<int64_t>& ids) {
  std::string text;
  for (size_t i = 0; i < std::min<size_t>(ids.size(), 5); ++i) text += (i ? " " : "") + std::to_string(ids[i]);
  return ids.size() > 5 ? text + " ..." : text;
}

void run_compare(const CompareFlags& flags) {
  const std::vector<eval::Comparison> comparisons = eval::compare_runs(flags.a, flags.b);
  nlohmann::ordered_json report = nlohmann::ordered_json::array();
  base::Table table({"task", "filter", "metric", "n", "A", "B", "B - A", "95 %", "p", "gained", "lost", "documents"});
  for (const eval::Comparison& c : comparisons) {
    report.push_back({{"task", c.task},
                      {"filter", c.filter},
                      {"metric", c.metric},
                      {"samples", c.num_samples},
                      {"a", c.a},
                      {"b", c.b},
                      {"difference", c.difference},
                      {"low", c.low},
                      {"high", c.high},
                      {"p_value", c.p_value},
                      {"gained", c.gained},
                      {"lost", c.lost}});
    table.add_row({c.task, c.filter, c.metric, std::to_string(c.num_samples), fmt::format("{:.4f}", c.a),
                   fmt::format("{:.4f}", c.b), fmt::format("{:+.4f}", c.difference),
                   fmt::format("{:+.4f} to {:+.4f}", c.low, c.high), fmt::format("{:.3f}", c.p_value),
                   std::to_string(c.gained.size()), std::to_string(c.lost.size()),
                   fmt::format("+ {}  - {}", first_few(c.gained), first_few(c.lost))});
  }
  std::printf("%s", flags.as_json ? (report.dump(2) + "\n").c_str() : table.to_string().c_str());
}

}  // namespace

void add_eval_comparisons(Command verb) {
  auto kl = std::make_shared<KlFlags>();
  const Command kl_verb = verb.add_verb("kl", "how far a model's predictions are from a reference's over a text");
  kl_verb.option("REF", &kl->reference, "model folder of the reference").required();
  kl_verb.option("MODEL", &kl->model, "model folder with the same vocabulary").required();
  kl_verb.option("FILE", &kl->file, "text file").required();
  kl_verb.option("--context", &kl->options.context, "tokens of a window").shows_default().at_least(2);
  kl_verb.option("--quantize", &kl->quantize, "fp8: round the linear layers of MODEL while it is loaded");
  kl_verb.option("--kv-cache", &kl->kv_cache, "MODEL's keys and values go through such a cache: q8_0, int8 or fp8")
      .one_of({"auto", "q8_0", "int8", "fp8"})
      .shows_default();
  kl_verb.option("--device", &kl->device, "cpu, cuda or cuda:N").shows_default();
  kl_verb.option("--precision", &kl->precision, "fp32, bf16 or fp16").shows_default();
  kl_verb.flag("--json", &kl->as_json, "print as JSON");
  kl_verb.on_run([kl] { run_kl(*kl); });
  auto compare = std::make_shared<CompareFlags>();
  const Command compare_verb = verb.add_verb("compare", "two runs over the same samples: differences and what flipped");
  compare_verb.option("A", &compare->a, "folder that `eval --output` wrote").required();
  compare_verb.option("B", &compare->b, "another one").required();
  compare_verb.flag("--json", &compare->as_json, "print as JSON");
  compare_verb.on_run([compare] { run_compare(*compare); });
}

}  // namespace sinter::cli

#include "quant/quantize.h"

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/verbs.h"
#include "eval/kl.h"
#include "io/gguf_writer.h"
#include "models/open_model.h"
#include "quant/importance.h"
#include "quant/mixes.h"
#include "tokenizer/tokenizer.h"

namespace sinter::cli {
namespace {

namespace fs = std::filesystem;

struct Flags {
  std::string model, out, type = "q4_k_m", importance, measure;
  int64_t importance_tokens = 1 << 17;
  bool force = false, as_json = false, lists_tensors = false;
};

uint64_t bytes_below(const std::string& path) {
  if (!fs::is_directory(path)) return fs::file_size(path);
  uint64_t total = 0;
  for (const auto& entry : fs::directory_iterator(path)) {
    if (entry.path().extension() == ".safetensors") total += entry.file_size();
  }
  return total;
}

std::string type_list() {
  std::string text;
  for (const quant::Mix& mix : quant::mixes()) text += (text.empty() ? "" : ", ") + std::string(mix.name);
  return text;
}

quant::Importance calibrate(const Flags& flags) {
  const std::string text = base::read_file(flags.importance);
  const auto tokenizer = tokenizer::Tokenizer::load(flags.model);
  std::vector<int32_t> tokens = tokenizer.encode_parallel(text);
  if (static_cast<int64_t>(tokens.size()) > flags.importance_tokens)
    tokens.resize(static_cast<size_t>(flags.importance_tokens));
  const models::OpenModel model = models::open_model(flags.model, {});
  base::ProgressLine line;
  return quant::measure_importance(model, tokens, tokenizer.special_ids().bos, [&](int64_t done, int64_t total) {
    line.update(fmt::format("calibrating {}/{} tokens", done, total));
  });
}

// What was lost against the original, printed and kept in the file.
eval::KlResult measure(const Flags& flags) {
  const auto tokenizer = tokenizer::Tokenizer::load(flags.out);
  const std::vector<int32_t> tokens = tokenizer.encode_parallel(base::read_file(flags.measure));
  const models::OpenModel original = models::open_model(flags.model, {}), model = models::open_model(flags.out, {});
  base::ProgressLine line;
  const eval::KlResult r = eval::compare_predictions(original, model, tokens, {}, [&](int64_t done, int64_t total) {
    line.update(fmt::format("measuring {}/{} tokens", done, total));
  });
  line.finish();
  const double values[] = {r.model_perplexity, r.reference_perplexity, r.mean_kl, r.kl_999, r.same_top};
  for (size_t i = 0; i < std::size(values); ++i) io::replace_f64(flags.out, quant::kQualityKeys[i], values[i]);
  return r;
}

void run_quantize(const Flags& flags) {
  SINTER_CHECK(flags.out.ends_with(".gguf"), "'{}' is no name of a GGUF file; expected NAME.gguf", flags.out);
  SINTER_CHECK(flags.force || !fs::exists(flags.out),
               "'{}' is there already; name another place, or say --force to replace it", flags.out);
  quant::GgufOptions options{.type = flags.type, .reserves_quality = !flags.measure.empty()};
  if (!flags.importance.empty()) options.importance = calibrate(flags);
  const auto start = std::chrono::steady_clock::now();
  base::ProgressLine line;
  const std::vector<quant::WrittenTensor> written =
      quant::write_gguf(flags.model, flags.out, options, [&](const quant::Progress& p) {
        const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        const double share = static_cast<double>(p.bytes_done) / static_cast<double>(std::max<uint64_t>(1, p.bytes));
        line.update(fmt::format("quantizing {}/{} tensors ({}), {:.0f} %, ETA {}", p.done, p.count, p.tensor,
                                100 * share, base::format_duration(share > 0 ? seconds / share - seconds : 0)));
      });
  line.finish();
  std::map<std::string, std::pair<int64_t, uint64_t>> by_type;
  for (const quant::WrittenTensor& tensor : written) {
    ++by_type[tensor.type].first;
    by_type[tensor.type].second += tensor.bytes;
  }
  nlohmann::json report{{"file", flags.out}, {"type", flags.type}, {"bytes", fs::file_size(flags.out)}};
  for (const auto& [type, sum] : by_type) report["tensors"][type] = {{"count", sum.first}, {"bytes", sum.second}};
  std::string quality;
  if (!flags.measure.empty()) {
    const eval::KlResult r = measure(flags);
    report["quality"] = {{"perplexity", r.model_perplexity},
                         {"original_perplexity", r.reference_perplexity},
                         {"mean_kl", r.mean_kl},
                         {"kl_99_9", r.kl_999},
                         {"same_top", r.same_top}};
    quality = fmt::format("perplexity {:.4f} (original {:.4f}), mean KL {:.5f}, 99.9 % KL {:.3f}, same top {:.1f} %\n",
                          r.model_perplexity, r.reference_perplexity, r.mean_kl, r.kl_999, 100 * r.same_top);
  }
  if (flags.as_json) {
    std::printf("%s\n", report.dump(2).c_str());
    return;
  }
  if (flags.lists_tensors) {
    base::Table table({"tensor", "type", "bytes"});
    for (const quant::WrittenTensor& t : written)
      table.add_row({t.name, t.type, base::format_grouped(static_cast<int64_t>(t.bytes))});
    std::printf("%s\n", table.to_string().c_str());
  }
  std::string types;
  for (const auto& [type, sum] : by_type) types += fmt::format("{}{} {}", types.empty() ? "" : ", ", sum.first, type);
  std::printf("%s: %s (the original has %s), tensors: %s\n%s", flags.out.c_str(),
              base::format_bytes(static_cast<double>(fs::file_size(flags.out))).c_str(),
              base::format_bytes(static_cast<double>(bytes_below(flags.model))).c_str(), types.c_str(),
              quality.c_str());
}

}  // namespace

void add_quantize(Command app) {
  auto flags = std::make_shared<Flags>();
  const Command verb = app.add_verb("quantize", "write a model with smaller weights, as a GGUF file");
  verb.option("MODEL", &flags->model, "a Hugging Face folder or a .gguf file").required();
  verb.option("OUT", &flags->out, "NAME.gguf").required();
  verb.option("--type", &flags->type, type_list()).shows_default();
  verb.option("--importance", &flags->importance,
              "a text the model is run on first, to learn which columns matter: better at 4 bits and below")
      .existing_file();
  verb.option("--importance-tokens", &flags->importance_tokens, "the most of it to read").at_least(256).shows_default();
  verb.option("--measure", &flags->measure,
              "a text on which the result is compared with the original; the figures are kept in the file")
      .existing_file();
  verb.flag("--tensors", &flags->lists_tensors, "list the type of every tensor");
  verb.flag("--force", &flags->force, "replace what is there");
  verb.flag("--json", &flags->as_json, "print as JSON");
  verb.footer(
      "Examples:\n"
      "  sinter quantize my-model my-model.q4_k_m.gguf\n"
      "  sinter quantize my-model small.gguf --type q3_k_m --importance train.txt --measure valid.txt\n"
      "\n"
      "A killed run goes on where it stopped when it is started again. See docs/gguf.md for the types.");
  verb.on_run([flags] { run_quantize(*flags); });
}

}  // namespace sinter::cli

#include "quant/quantize.h"

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/verbs.h"
#include "eval/kl.h"
#include "io/gguf_writer.h"
#include "models/open_model.h"
#include "quant/folder/quantize_folder.h"
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
  // Of gptq, awq and fp8.
  int64_t bits = 4, group = 128, window = 256, fp8_block = 0;
  bool is_asymmetric = false, orders_groups = false;
};

constexpr const char* kFolderTypes[] = {"gptq", "awq", "fp8"};
bool is_folder_type(const std::string& type) {
  return std::find(std::begin(kFolderTypes), std::end(kFolderTypes), type) != std::end(kFolderTypes);
}

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
  for (const char* name : kFolderTypes) text += std::string(", ") + name;
  return text;
}

std::vector<int32_t> calibration_tokens(const Flags& flags, const tokenizer::Tokenizer& tokenizer) {
  std::vector<int32_t> tokens = tokenizer.encode_parallel(base::read_file(flags.importance));
  if (static_cast<int64_t>(tokens.size()) > flags.importance_tokens)
    tokens.resize(static_cast<size_t>(flags.importance_tokens));
  return tokens;
}

quant::Importance calibrate(const Flags& flags) {
  const auto tokenizer = tokenizer::Tokenizer::load(flags.model);
  const std::vector<int32_t> tokens = calibration_tokens(flags, tokenizer);
  const models::OpenModel model = models::open_model(flags.model, {});
  base::ProgressLine line;
  return quant::measure_importance(model, tokens, tokenizer.special_ids().bos, [&](int64_t done, int64_t total) {
    line.update(fmt::format("calibrating {}/{} tokens", done, total));
  });
}

nlohmann::json quality_of(const eval::KlResult& r) {
  return {{"perplexity", r.model_perplexity},
          {"original_perplexity", r.reference_perplexity},
          {"mean_kl", r.mean_kl},
          {"kl_99_9", r.kl_999},
          {"same_top", r.same_top}};
}

std::string quality_text(const eval::KlResult& r) {
  return fmt::format("perplexity {:.4f} (original {:.4f}), mean KL {:.5f}, 99.9 % KL {:.3f}, same top {:.1f} %\n",
                     r.model_perplexity, r.reference_perplexity, r.mean_kl, r.kl_999, 100 * r.same_top);
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
  if (is_folder_type(flags.type)) {
    nlohmann::json config = base::load_json(flags.out + "/config.json");
    config["sinter_quality"] = quality_of(r);
    base::save_json(flags.out + "/config.json", config);
    return r;
  }
  const double values[] = {r.model_perplexity, r.reference_perplexity, r.mean_kl, r.kl_999, r.same_top};
  for (size_t i = 0; i < std::size(values); ++i) io::replace_f64(flags.out, quant::kQualityKeys[i], values[i]);
  return r;
}

// "quantizing 3/12 tensors (NAME), 25 %, ETA 10 s"
class ProgressReport {
 public:
  void operator()(const quant::Progress& p) {
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    const double share = p.bytes > 0 ? static_cast<double>(p.bytes_done) / static_cast<double>(p.bytes)
                                     : static_cast<double>(p.done) / static_cast<double>(std::max<size_t>(1, p.count));
    line_.update(fmt::format("quantizing {}/{} tensors ({}), {:.0f} %, ETA {}", p.done, p.count, p.tensor, 100 * share,
                             base::format_duration(share > 0 ? seconds / share - seconds : 0)));
  }
  void finish() { line_.finish(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  base::ProgressLine line_;
};

quant::FolderOptions folder_options(const Flags& flags) {
  using Options = quant::FolderOptions;
  Options options{.method = flags.type == "gptq" ? Options::gptq : flags.type == "awq" ? Options::awq : Options::fp8};
  const bool is_gptq = options.method == Options::gptq, is_awq = options.method == Options::awq;
  if (is_gptq && flags.bits != 2 && flags.bits != 3 && flags.bits != 4 && flags.bits != 8)
    base::fail_usage("--bits {} of gptq; expected 2, 3, 4 or 8", flags.bits);
  if (!is_gptq && flags.bits != 4) base::fail_usage("--bits is for --type gptq; {} has one width", flags.type);
  if (!is_gptq && flags.orders_groups) base::fail_usage("--act-order is for --type gptq");
  if (!is_gptq && flags.is_asymmetric) base::fail_usage("--asymmetric is for --type gptq; awq always is");
  if ((is_gptq || is_awq) && flags.fp8_block > 0) base::fail_usage("--fp8-block is for --type fp8");
  if ((is_gptq || is_awq) && flags.importance.empty())
    base::fail_usage("--type {} needs a calibration text: --importance TEXT", flags.type);
  options.form = {.bits = static_cast<int>(flags.bits),
                  .group = flags.group,
                  .symmetric = is_gptq && !flags.is_asymmetric,
                  .orders_groups = flags.orders_groups};
  options.fp8_block = flags.fp8_block;
  if (is_gptq || is_awq) {
    const auto tokenizer = tokenizer::Tokenizer::load(flags.model);
    options.tokens = calibration_tokens(flags, tokenizer);
    options.window = flags.window;
    options.prefix_token = tokenizer.special_ids().bos;
  }
  return options;
}

void run_folder(const Flags& flags) {
  const quant::FolderOptions options = folder_options(flags);
  ProgressReport progress;
  quant::write_quantized_folder(flags.model, flags.out, options, [&](const quant::Progress& p) { progress(p); });
  progress.finish();
  nlohmann::json report{{"folder", flags.out}, {"type", flags.type}, {"bytes", bytes_below(flags.out)}};
  std::string quality;
  if (!flags.measure.empty()) {
    const eval::KlResult r = measure(flags);
    report["quality"] = quality_of(r);
    quality = quality_text(r);
  }
  if (flags.as_json) {
    std::printf("%s\n", report.dump(2).c_str());
    return;
  }
  std::printf("%s: %s (the original has %s)\n%s", flags.out.c_str(),
              base::format_bytes(static_cast<double>(bytes_below(flags.out))).c_str(),
              base::format_bytes(static_cast<double>(bytes_below(flags.model))).c_str(), quality.c_str());
}

void run_quantize(const Flags& flags) {
  SINTER_CHECK(flags.force || !fs::exists(flags.out),
               "'{}' is there already; name another place, or say --force to replace it", flags.out);
  if (is_folder_type(flags.type)) {
    SINTER_CHECK(!flags.out.ends_with(".gguf"), "--type {} writes a folder; '{}' is the name of a GGUF file",
                 flags.type, flags.out);
    return run_folder(flags);
  }
  SINTER_CHECK(flags.out.ends_with(".gguf"), "'{}' is no name of a GGUF file; expected NAME.gguf", flags.out);
  quant::GgufOptions options{.type = flags.type, .reserves_quality = !flags.measure.empty()};
  if (!flags.importance.empty()) options.importance = calibrate(flags);
  ProgressReport progress;
  const std::vector<quant::WrittenTensor> written =
      quant::write_gguf(flags.model, flags.out, options, [&](const quant::Progress& p) { progress(p); });
  progress.finish();
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
    report["quality"] = quality_of(r);
    quality = quality_text(r);
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
  const Command verb =
      app.add_verb("quantize", "write a model with smaller weights: a GGUF file, or a GPTQ, AWQ or fp8 folder");
  verb.option("MODEL", &flags->model, "a Hugging Face folder or a .gguf file").required();
  verb.option("OUT", &flags->out, "NAME.gguf, or a folder for gptq, awq and fp8").required();
  verb.option("--type", &flags->type, type_list()).shows_default();
  verb.option("--importance", &flags->importance,
              "a text the model is run on first, to learn which columns matter: better at 4 bits and below, "
              "needed by gptq and awq")
      .existing_file();
  verb.option("--importance-tokens", &flags->importance_tokens, "the most of it to read").at_least(256).shows_default();
  verb.option("--measure", &flags->measure,
              "a text on which the result is compared with the original; the figures are kept in the file")
      .existing_file();
  verb.option("--bits", &flags->bits, "gptq: 2, 3, 4 or 8").shows_default();
  verb.option("--group", &flags->group, "gptq, awq: columns that share a scale; -1: a whole row").shows_default();
  verb.option("--window", &flags->window,
              "gptq, awq: tokens of the text read together; no more than the model was trained with")
      .in_range(1, 1 << 20)
      .shows_default();
  verb.flag("--asymmetric", &flags->is_asymmetric, "gptq: zero points that vary");
  verb.flag("--act-order", &flags->orders_groups, "gptq: groups of columns of like importance");
  verb.option("--fp8-block", &flags->fp8_block,
              "fp8: blocks of so many rows and columns with one scale, such as 128; 0: a scale for each row")
      .at_least(0)
      .shows_default();
  verb.flag("--tensors", &flags->lists_tensors, "list the type of every tensor");
  verb.flag("--force", &flags->force, "replace what is there");
  verb.flag("--json", &flags->as_json, "print as JSON");
  verb.footer(
      "Examples:\n"
      "  sinter quantize my-model my-model.q4_k_m.gguf\n"
      "  sinter quantize my-model small.gguf --type q3_k_m --importance train.txt --measure valid.txt\n"
      "  sinter quantize my-model my-gptq --type gptq --group 32 --importance train.txt\n"
      "\n"
      "A killed run goes on where it stopped when it is started again. See docs/gguf.md and\n"
      "docs/quantization.md for the types.");
  verb.on_run([flags] { run_quantize(*flags); });
}

}  // namespace sinter::cli

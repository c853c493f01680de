#include "data/pipeline/run.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/text.h"
#include "base/threads.h"
#include "data/formats/line_reader.h"
#include "data/pipeline/report.h"
#include "data/pipeline/work.h"
#include "data/token_shard.h"
#include "data/tokenize.h"

namespace sinter::data {
namespace {

namespace fs = std::filesystem;

constexpr int kAttempts = 3;

// Of a file's bytes, or of all files below a folder and their names; 0 where there is none.
uint64_t hash_files(const std::string& path) {
  if (path.empty() || !fs::exists(path)) return 0;
  if (!fs::is_directory(path)) {
    const base::MappedFile file(path);
    return XXH3_64bits(file.text().data(), file.text().size());
  }
  std::vector<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    if (entry.is_regular_file()) names.push_back(entry.path().string());
  }
  std::sort(names.begin(), names.end());
  uint64_t key = 1;
  for (const std::string& name : names)
    key = base::hash_text(name.substr(path.size()), base::mix_bits(key, hash_files(name)));
  return key;
}

// What decides a part's results beside its own bytes.
uint64_t settings_key(const PipelineRecipe& recipe) {
  uint64_t key = base::hash_text(recipe.fingerprint, 4);  // 4: the version of these results
  for (const std::string* path : {&recipe.language_model, &recipe.rank_model, &recipe.perplexity_model,
                                  &recipe.url_domains, &recipe.url_urls, &recipe.url_words, &recipe.url_soft_words,
                                  &recipe.url_subwords, &recipe.url_suffixes, &recipe.bad_words, &recipe.nsfw_model})
    key = base::mix_bits(key, hash_files(*path));
  for (const std::string& path : recipe.decontaminate) key = base::mix_bits(key, hash_files(path));
  for (const EvalItem& item : recipe.task_items)
    key = base::hash_text(item.task, base::hash_text(item.query, base::hash_text(item.label, key)));
  key = base::mix_bits(key, recipe.scorer_key);
  return key;
}

// A line about parts done, with the rate and the time that is left.
class Progress {
 public:
  Progress(std::string what, int64_t all, bool is_shown) : what_(std::move(what)), all_(all), is_shown_(is_shown) {}
  void add(int64_t bytes) {
    const std::lock_guard lock(mutex_);
    done_ += bytes;
    if (!is_shown_) return;
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    const double rate = static_cast<double>(done_) / std::max(seconds, 1e-3);
    const double left = rate > 0 ? static_cast<double>(all_ - done_) / rate : 0;
    line_.update(fmt::format("{}: {} of {}, {}/s, {} left (Ctrl-C: what is done stays)", what_,
                             base::format_bytes(double(done_)), base::format_bytes(double(all_)),
                             base::format_bytes(rate), base::format_duration(std::max(left, 0.0))));
  }

 private:
  std::string what_;
  int64_t all_, done_ = 0;
  bool is_shown_;
  std::mutex mutex_;
  base::ProgressLine line_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

void each_of_mine(size_t count, const comm::Communicator& world, const std::function<void(size_t)>& work) {
  std::vector<size_t> mine;
  for (size_t i = static_cast<size_t>(world.rank()); i < count; i += static_cast<size_t>(world.size()))
    mine.push_back(i);
  base::parallel_for(static_cast<int64_t>(mine.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) work(mine[static_cast<size_t>(i)]);
  });
}

// The parts of the input with their keys. Each rank reads its share of the input for them.
std::vector<WorkPart> list_work(const PipelineRecipe& recipe, comm::Communicator& world) {
  std::vector<WorkPart> parts;
  for (const PipelineInput& input : recipe.inputs) {
    for (FilePart& file : list_parts(input.path, input.source, recipe.part_bytes)) {
      WorkPart part;
      part.file = std::move(file);
      part.number = parts.size();
      part.epochs = input.epochs;
      parts.push_back(std::move(part));
    }
  }
  const uint64_t settings = settings_key(recipe);
  const auto num_ranks = static_cast<size_t>(world.size());
  const size_t each = (parts.size() + num_ranks - 1) / num_ranks;  // of rank r: r, r + num_ranks, ...
  std::vector<uint64_t> mine(each), all(each * num_ranks);
  each_of_mine(parts.size(), world, [&](size_t i) {
    const FilePart& part = parts[i].file;
    const base::MappedFile file(part.path);
    const std::string_view bytes = file.text().substr(part.begin, part.end - part.begin);
    mine[i / num_ranks] = base::mix_bits(base::mix_bits(settings, XXH3_64bits(bytes.data(), bytes.size())),
                                         base::hash_text(part.path + part.source, part.begin));
  });
  world.all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
  for (size_t i = 0; i < parts.size(); ++i) parts[i].key = all[i % num_ranks * each + i / num_ranks];
  return parts;
}

class Runner {
 public:
  Runner(const PipelineRecipe& recipe, comm::Communicator& world)
      : recipe_(recipe), world_(world), folder_(recipe.output) {}

  RunSummary run() {
    const auto start = std::chrono::steady_clock::now();
    for (const char* sub : {"work", "documents", "columns", "aside", "tokens"})
      base::create_folders(recipe_.output + "/" + sub);
    parts_ = list_work(recipe_, world_);
    if (world_.rank() == 0) remove_stale();
    world_.barrier();
    first_stage();
    world_.barrier();
    count_documents();
    const std::vector<bool> keep = choose();
    finish(keep);
    world_.barrier();
    summary_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    gather_report();
    return summary_;
  }

 private:
  // Results of parts that are no more, which a reader of the folder would take for part of this run.
  void remove_stale() const {
    std::map<std::string, bool> wanted;
    for (const WorkPart& part : parts_) wanted[fs::path(folder_.stem(part)).filename().string()] = true;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(recipe_.output + "/work", error)) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with("pairs-") && !wanted.contains(name.substr(0, name.find('.'))))
        fs::remove(entry.path(), error);
    }
    for (const char* sub : {"documents", "columns", "aside", "tokens"}) {
      base::remove_abandoned_files(recipe_.output + "/" + sub, "");
      for (const auto& entry : fs::directory_iterator(recipe_.output + "/" + sub, error)) {
        const std::string name = entry.path().filename().string();
        if (name.find(".tmp.") == std::string::npos && std::strtoull(name.c_str(), nullptr, 10) >= parts_.size())
          fs::remove(entry.path(), error);
      }
    }
    base::remove_abandoned_files(recipe_.output + "/work", "");
  }

  void first_stage() {
    const PipelineModels models(recipe_);
    int64_t bytes = 0;
    for (const WorkPart& part : parts_) bytes += static_cast<int64_t>(part.file.end - part.file.begin);
    Progress progress("filtering", bytes, world_.rank() == 0);
    std::atomic<int64_t> done_before{0};
    each_of_mine(parts_.size(), world_, [&](size_t i) {
      const WorkPart& part = parts_[i];
      if (is_done(part)) {
        ++done_before;
      } else {
        process_with_retries(part, models);
      }
      progress.add(static_cast<int64_t>(part.file.end - part.file.begin));
    });
    summary_.parts = static_cast<int64_t>(parts_.size());
    summary_.parts_done_before = world_.sum(done_before.load());
  }

  // All that a part leaves is there: what somebody removed or a full disk lost is made again.
  bool is_done(const WorkPart& part) const {
    const std::string stem = folder_.stem(part);
    return fs::exists(stem + ".json") && fs::exists(stem + ".docs.zst") && fs::exists(stem + ".marks") &&
           fs::exists(folder_.result("columns", part.number, ".jsonl.zst"));
  }
  // The marker says what set of parts and tokenizer the part's documents and shard were written for.
  std::string marker_of(const WorkPart& part) const { return folder_.stem(part) + ".final.json"; }
  bool is_finished(const WorkPart& part, const std::string& result) const {
    if (!fs::exists(marker_of(part)) || !fs::exists(folder_.result("documents", part.number, ".jsonl.zst")))
      return false;
    const nlohmann::json marker = base::load_json(marker_of(part));
    return marker.value("result", "") == result && (marker.value("tokens", int64_t{0}) == 0 ||
                                                    fs::exists(folder_.result("tokens", part.number, kShardExtension)));
  }

  // A file system that fails for a moment ends no run; what is wrong for good is thrown at the last attempt.
  void process_with_retries(const WorkPart& part, const PipelineModels& models) const {
    for (int attempt = 1;; ++attempt) {
      try {
        return process_part(part, recipe_, models, folder_);
      } catch (const std::exception& e) {
        if (attempt == kAttempts) throw;
        base::log_warning("part {} of '{}': {}; attempt {} of {}", part.number, part.file.path, e.what(), attempt + 1,
                          kAttempts);
        std::this_thread::sleep_for(std::chrono::milliseconds(200 * attempt));
      }
    }
  }

  void count_documents() {
    first_document_.assign(1, 0);
    for (const WorkPart& part : parts_) {
      statistics_.push_back(base::load_json(folder_.stem(part) + ".json"));
      first_document_.push_back(first_document_.back() + statistics_.back()["kept"].get<size_t>());
    }
  }

  std::vector<bool> choose() {
    const size_t count = first_document_.back();
    std::vector<bool> keep(count, true);
    if (recipe_.dedup_exact || recipe_.dedup_minhash) {
      const Duplicates gone = find_duplicates(parts_, first_document_, recipe_, folder_, world_.rank(), world_.size(),
                                              [&] { world_.barrier(); });
      for (size_t d = 0; d < count; ++d) {
        keep[d] = !gone.exact[d] && !gone.near[d];
        if (gone.exact[d]) ++summary_.dropped["dedup/exact_duplicate"];
        if (gone.near[d]) ++summary_.dropped["dedup/near_duplicate"];
      }
    }
    if (recipe_.rank_keep < 1) keep_best(keep);
    return keep;
  }

  // The best share of what is left, by score; equal scores stay together.
  void keep_best(std::vector<bool>& keep) {
    const size_t num_bands = recipe_.dedup_minhash ? static_cast<size_t>(recipe_.minhash.bands) : 0;
    std::vector<float> scores(keep.size()), left;
    for (size_t p = 0; p < parts_.size(); ++p) {
      const PartMarks marks = read_marks(folder_.stem(parts_[p]) + ".marks", num_bands);
      for (size_t d = 0; d < marks.documents.size(); ++d) scores[first_document_[p] + d] = marks.documents[d].rank;
    }
    for (size_t d = 0; d < keep.size(); ++d) {
      if (keep[d]) left.push_back(scores[d]);
    }
    const auto wanted = static_cast<size_t>(std::llround(recipe_.rank_keep * static_cast<double>(left.size())));
    if (wanted >= left.size()) return;
    std::sort(left.begin(), left.end(), std::greater<>());
    const float least = wanted > 0 ? left[wanted - 1] : INFINITY;
    for (size_t d = 0; d < keep.size(); ++d) {
      if (keep[d] && scores[d] < least) {
        keep[d] = false;
        ++summary_.dropped["rank/below_percentile"];
      }
    }
  }

  void finish(const std::vector<bool>& keep) {
    std::optional<tokenizer::Tokenizer> tokenizer;
    if (!recipe_.tokenizer.empty()) tokenizer = tokenizer::Tokenizer::load(recipe_.tokenizer);
    uint64_t all = tokenizer ? tokenizer_hash(*tokenizer) : 0;
    for (const WorkPart& part : parts_) all = base::mix_bits(all, part.key);

    const std::string result = fmt::format("{:016x}", all);
    each_of_mine(parts_.size(), world_, [&](size_t i) {
      if (!is_finished(parts_[i], result)) finish_part(i, keep, tokenizer ? &*tokenizer : nullptr, result);
    });
    world_.barrier();
    for (const WorkPart& part : parts_) {
      const nlohmann::json one = base::load_json(marker_of(part));
      summary_.kept += one["kept"].get<int64_t>();
      summary_.kept_bytes += one["bytes"].get<int64_t>();
      summary_.tokens += one["tokens"].get<int64_t>();
    }
  }

  void finish_part(size_t i, const std::vector<bool>& keep, const tokenizer::Tokenizer* tokenizer,
                   const std::string& result) const {
    const WorkPart& part = parts_[i];
    fs::remove(marker_of(part));  // before what it speaks of is replaced
    PackedLines out(folder_.result("documents", part.number, ".jsonl.zst"));
    const std::string shard_path = folder_.result("tokens", part.number, kShardExtension);
    std::unique_ptr<TokenShardWriter> shard;
    int64_t kept = 0, bytes = 0, tokens = 0;
    LineReader lines(folder_.stem(part) + ".docs.zst", 0, UINT64_MAX, UINT64_MAX);
    std::string_view line;
    for (size_t d = 0; lines.next(line) == LineReader::Status::line; ++d) {
      if (!keep.at(first_document_[i] + d)) continue;
      const int64_t copies = num_copies(part.epochs, line);
      if (copies == 0) continue;
      std::vector<int32_t> ids;
      const std::string text = text_of_line(line);
      if (tokenizer) ids = encode(*tokenizer, text);
      for (int64_t c = 0; c < copies; ++c) {
        out.add(line);
        ++kept;
        bytes += static_cast<int64_t>(text.size());
        if (!tokenizer) continue;
        if (!shard)
          shard = std::make_unique<TokenShardWriter>(shard_path, tokenizer->vocab_size(), tokenizer_hash(*tokenizer));
        shard->add_document(ids);
        tokens += static_cast<int64_t>(ids.size());
      }
    }
    out.commit();
    if (shard) {
      shard->commit();
    } else {
      std::error_code error;
      fs::remove(shard_path, error);
    }
    base::save_json(marker_of(part), {{"result", result}, {"kept", kept}, {"bytes", bytes}, {"tokens", tokens}});
  }

  // 2.3 epochs: two copies, and a third for three documents of ten, chosen by their content.
  static int64_t num_copies(double epochs, std::string_view line) {
    const double whole = std::floor(epochs);
    const double draw = static_cast<double>(XXH3_64bits(line.data(), line.size()) >> 11) * 0x1p-53;
    return static_cast<int64_t>(whole) + (draw < epochs - whole ? 1 : 0);
  }

  std::vector<int32_t> encode(const tokenizer::Tokenizer& tokenizer, const std::string& text) const {
    std::vector<int32_t> ids = tokenizer.encode(text);
    const tokenizer::SpecialIds& special = tokenizer.special_ids();
    if (recipe_.add_bos && special.bos >= 0) ids.insert(ids.begin(), special.bos);
    if (recipe_.add_eos && special.eos >= 0) ids.push_back(special.eos);
    return ids;
  }

  void gather_report() {
    nlohmann::json report{{"dropped", summary_.dropped}};
    for (const nlohmann::json& part : statistics_) merge_statistics(report, part, recipe_.samples);
    summary_.documents = report["documents"];
    summary_.bytes = report["bytes"];
    summary_.bad_records = report["bad"];
    summary_.dropped = report["dropped"].get<std::map<std::string, int64_t>>();
    report["kept"] = summary_.kept;
    report["kept_bytes"] = summary_.kept_bytes;
    report["tokens"] = summary_.tokens;
    report["parts"] = summary_.parts;
    if (world_.rank() == 0) base::save_json(recipe_.output + "/report.json", report);
  }

  const PipelineRecipe& recipe_;
  comm::Communicator& world_;
  WorkFolder folder_;
  std::vector<WorkPart> parts_;
  std::vector<nlohmann::json> statistics_;
  std::vector<size_t> first_document_;
  RunSummary summary_;
};

}  // namespace

RunSummary run_pipeline(const PipelineRecipe& recipe, comm::Communicator& world) { return Runner(recipe, world).run(); }

}  // namespace sinter::data

#include "data/pipeline/run.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/text.h"
#include "base/threads.h"
#include "data/formats/line_reader.h"
#include "data/pipeline/mixture.h"
#include "data/pipeline/report.h"
#include "data/pipeline/work.h"
#include "data/text/hash.h"
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

// Models and lists that the recipe names.
std::vector<const std::string*> named_files(const PipelineRecipe& recipe) {
  std::vector<const std::string*> paths{&recipe.language_model, &recipe.rank_model,   &recipe.perplexity_model,
                                        &recipe.url_domains,    &recipe.url_urls,     &recipe.url_words,
                                        &recipe.url_soft_words, &recipe.url_subwords, &recipe.url_suffixes,
                                        &recipe.bad_words,      &recipe.nsfw_model};
  for (const std::string& path : recipe.decontaminate) paths.push_back(&path);
  return paths;
}

// What decides a part's results beside its own bytes.
uint64_t settings_key(const PipelineRecipe& recipe) {
  uint64_t key = base::hash_text(recipe.document_fingerprint, 5);  // 5: the version of these results
  for (const std::string* path : named_files(recipe)) key = base::mix_bits(key, hash_files(*path));
  for (const EvalItem& item : recipe.task_items)
    key = base::hash_text(item.task, base::hash_text(item.query, base::hash_text(item.label, key)));
  key = base::mix_bits(key, recipe.scorer_key);
  return key;
}

// A line about the bytes of parts that are done, with the rate and the time that is left.
class Progress {
 public:
  Progress(std::string what, int64_t all_bytes, bool is_shown)
      : what_(std::move(what)), all_(all_bytes), is_shown_(is_shown) {}
  void add_bytes(int64_t bytes) {
    const std::lock_guard lock(mutex_);
    done_ += bytes;
    show();
  }
  void add_documents(int64_t count) {
    const std::lock_guard lock(mutex_);
    documents_ += count;
    show();
  }

 private:
  void show() {
    if (!is_shown_) return;
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    const double rate = static_cast<double>(done_) / std::max(seconds, 1e-3);
    const std::string left = done_ > 0 ? base::format_duration(static_cast<double>(all_ - done_) / rate) : "?";
    line_.update(fmt::format("{}: {} of {}, {} documents, {}/s, {} left (Ctrl-C: what is done stays)", what_,
                             base::format_bytes(double(done_)), base::format_bytes(double(all_)),
                             base::format_grouped(documents_), base::format_bytes(rate), left));
  }

  std::string what_;
  int64_t all_, done_ = 0, documents_ = 0;
  bool is_shown_;
  std::mutex mutex_;
  base::ProgressLine line_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// What this rank does of `count` things.
std::vector<size_t> share_of(size_t count, const comm::Communicator& world) {
  std::vector<size_t> mine;
  for (size_t i = static_cast<size_t>(world.rank()); i < count; i += static_cast<size_t>(world.size()))
    mine.push_back(i);
  return mine;
}

void for_each(const std::vector<size_t>& mine, const std::function<void(size_t)>& work) {
  base::parallel_for(static_cast<int64_t>(mine.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) work(mine[static_cast<size_t>(i)]);
  });
}

// The parts of the input: pieces of large files, and small files together.
std::vector<WorkPart> cut_input(const PipelineRecipe& recipe) {
  constexpr size_t kMostFiles = 10000;
  std::vector<WorkPart> parts;
  for (size_t number = 0; number < recipe.inputs.size(); ++number) {
    const PipelineInput& input = recipe.inputs[number];
    uint64_t room = 0;
    bool is_first = true;
    for (FilePart& file : list_parts(input.path, input.source, recipe.part_bytes, recipe.read)) {
      const uint64_t bytes = file.end - file.begin;
      if (std::exchange(is_first, false) || bytes > room || parts.back().files.size() == kMostFiles) {
        parts.push_back({{}, parts.size(), 0, number});
        room = recipe.part_bytes;
      }
      parts.back().files.push_back(std::move(file));
      room -= std::min(room, bytes);
    }
  }
  return parts;
}

// The parts with their keys. Each rank reads its share of the input for them.
std::vector<WorkPart> list_work(const PipelineRecipe& recipe, comm::Communicator& world) {
  std::vector<WorkPart> parts = cut_input(recipe);
  const uint64_t settings = settings_key(recipe);
  const auto num_ranks = static_cast<size_t>(world.size());
  const size_t each = (parts.size() + num_ranks - 1) / num_ranks;  // of rank r: r, r + num_ranks, ...
  std::vector<uint64_t> mine(each), all(each * num_ranks);
  for_each(share_of(parts.size(), world), [&](size_t i) {
    uint64_t key = settings;
    for (const FilePart& part : parts[i].files) {
      const base::MappedFile file(part.path);
      const std::string_view bytes = file.text().substr(part.begin, part.end - part.begin);
      key = base::mix_bits(base::mix_bits(key, XXH3_64bits(bytes.data(), bytes.size())),
                           base::hash_text(part.path + part.source, part.begin));
    }
    mine[i / num_ranks] = key;
  });
  world.all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
  for (size_t i = 0; i < parts.size(); ++i) parts[i].key = all[i % num_ranks * each + i / num_ranks];
  return parts;
}

// Why a document of the first stage is not among the results.
enum class Fate : uint8_t { kept, exact_duplicate, near_duplicate, below_percentile };
constexpr const char* kFates[] = {"kept", "dedup/exact_duplicate", "dedup/near_duplicate", "rank/below_percentile"};

class Runner {
 public:
  Runner(const PipelineRecipe& recipe, comm::Communicator& world)
      : recipe_(recipe), world_(world), folder_(recipe.output) {}

  RunSummary run() {
    const auto start = std::chrono::steady_clock::now();
    // What is wrong with it is told before the first hour of work, not after.
    if (!recipe_.tokenizer.empty()) tokenizer_ = tokenizer::Tokenizer::load(recipe_.tokenizer);
    for (const char* sub : {"work", "documents", "columns", "aside", "tokens"})
      base::create_folders(recipe_.output + "/" + sub);
    parts_ = list_work(recipe_, world_);
    if (world_.rank() == 0) remove_stale();
    world_.barrier();
    first_stage();
    world_.barrier();
    count_documents();
    const std::vector<Fate> fates = choose();
    finish(fates);
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

  // The parts of this rank that are left to do, and a line about them.
  template <class IsDone>
  std::vector<size_t> parts_left(IsDone is_done) const {
    std::vector<size_t> left = share_of(parts_.size(), world_);
    std::erase_if(left, [&](size_t i) { return is_done(parts_[i]); });
    return left;
  }
  Progress progress_of(const char* what, const std::vector<size_t>& parts) const {
    int64_t bytes = 0;
    for (size_t i : parts) bytes += static_cast<int64_t>(parts_[i].bytes());
    return {world_.size() > 1 ? fmt::format("{} (this rank's share)", what) : what, bytes, world_.rank() == 0};
  }

  void first_stage() {
    const std::vector<size_t> left = parts_left([&](const WorkPart& part) { return is_done(part); });
    const size_t mine = share_of(parts_.size(), world_).size();
    if (!left.empty()) {
      const PipelineModels models(recipe_);
      Progress progress = progress_of("filtering", left);
      for_each(left, [&](size_t i) {
        process_with_retries(parts_[i], models, progress);
        progress.add_bytes(static_cast<int64_t>(parts_[i].bytes()));
      });
    }
    summary_.parts = static_cast<int64_t>(parts_.size());
    summary_.parts_done_before = world_.sum(static_cast<int64_t>(mine - left.size()));
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
  void process_with_retries(const WorkPart& part, const PipelineModels& models, Progress& progress) const {
    for (int attempt = 1;; ++attempt) {
      try {
        return process_part(part, recipe_, models, folder_, [&](int64_t count) { progress.add_documents(count); });
      } catch (const std::exception& e) {
        if (attempt == kAttempts) throw;
        base::log_warning("part {} of '{}': {}; attempt {} of {}", part.number, part.files[0].path, e.what(),
                          attempt + 1, kAttempts);
        std::this_thread::sleep_for(std::chrono::milliseconds(200 * attempt));
      }
    }
  }

  void count_documents() {
    first_document_.assign(1, 0);
    for (const WorkPart& part : parts_) {
      const nlohmann::json statistics = base::load_json(folder_.stem(part) + ".json");
      first_document_.push_back(first_document_.back() + statistics["kept"].get<size_t>());
    }
  }

  std::vector<Fate> choose() {
    std::vector<Fate> fates(first_document_.back(), Fate::kept);
    if (recipe_.dedup_exact || recipe_.dedup_minhash) {
      const Duplicates gone = find_duplicates(parts_, first_document_, recipe_, folder_, world_.rank(), world_.size(),
                                              [&] { world_.barrier(); });
      for (size_t d = 0; d < fates.size(); ++d) {
        if (gone.near[d]) fates[d] = Fate::near_duplicate;
        if (gone.exact[d]) fates[d] = Fate::exact_duplicate;
      }
    }
    if (recipe_.rank_keep < 1) keep_best(fates);
    for (const Fate fate : fates) {
      if (fate != Fate::kept) ++summary_.dropped[kFates[static_cast<size_t>(fate)]];
    }
    return fates;
  }

  // The best share of what is left, by score; equal scores stay together.
  void keep_best(std::vector<Fate>& fates) const {
    std::vector<float> scores(fates.size()), left;
    for (size_t p = 0; p < parts_.size(); ++p) {
      const PartMarks marks = read_marks(folder_.stem(parts_[p]) + ".marks", num_bands());
      for (size_t d = 0; d < marks.documents.size(); ++d) scores[first_document_[p] + d] = marks.documents[d].rank;
    }
    for (size_t d = 0; d < fates.size(); ++d) {
      if (fates[d] == Fate::kept) left.push_back(scores[d]);
    }
    const auto wanted = static_cast<size_t>(std::llround(recipe_.rank_keep * static_cast<double>(left.size())));
    if (wanted >= left.size()) return;
    std::sort(left.begin(), left.end(), std::greater<>());
    const float least = wanted > 0 ? left[wanted - 1] : INFINITY;
    for (size_t d = 0; d < fates.size(); ++d) {
      if (fates[d] == Fate::kept && scores[d] < least) fates[d] = Fate::below_percentile;
    }
  }

  void finish(const std::vector<Fate>& fates) {
    const std::optional<tokenizer::Tokenizer>& tokenizer = tokenizer_;
    uint64_t all = base::hash_text(recipe_.fingerprint, tokenizer ? tokenizer_hash(*tokenizer) : 0);
    for (const WorkPart& part : parts_) all = base::mix_bits(all, part.key);
    const std::string result = fmt::format("{:016x}", all);
    const std::vector<size_t> left = parts_left([&](const WorkPart& part) { return is_finished(part, result); });
    const std::vector<double> epochs = choose_epochs(fates);
    Progress progress = progress_of(tokenizer ? "writing and tokenizing" : "writing", left);
    for_each(left, [&](size_t i) {
      progress.add_documents(finish_part(i, fates, epochs[parts_[i].input], tokenizer ? &*tokenizer : nullptr, result));
      progress.add_bytes(static_cast<int64_t>(parts_[i].bytes()));
    });
    world_.barrier();
    nlohmann::json outputs = nlohmann::json::array();
    for (const WorkPart& part : parts_) {
      const nlohmann::json one = base::load_json(marker_of(part));
      summary_.kept += one["kept"].get<int64_t>();
      summary_.kept_bytes += one["bytes"].get<int64_t>();
      summary_.tokens += one["tokens"].get<int64_t>();
      nlohmann::json inputs = nlohmann::json::array();
      for (const FilePart& file : part.files)
        inputs.push_back({{"file", file.path}, {"begin", file.begin}, {"end", file.end}});
      outputs.push_back({{"inputs", inputs},
                         {"source", part.files[0].source},
                         {"documents", one["kept"]},
                         {"tokens", one["tokens"]},
                         {"epochs", epochs[part.input]},
                         {"files", one["files"]}});
    }
    if (world_.rank() == 0) write_manifest(outputs, tokenizer ? &*tokenizer : nullptr);
  }

  // What every file was made of, by what, with its digest: for who has only the shards.
  void write_manifest(const nlohmann::json& parts, const tokenizer::Tokenizer* tokenizer) const {
    nlohmann::json models = nlohmann::json::object();
    for (const std::string* path : named_files(recipe_)) {
      if (!path->empty()) models[*path] = fmt::format("xxh3:{:016x}", hash_files(*path));
    }
    nlohmann::json manifest{{"format", "sinter data"},
                            {"version", 1},
                            {"recipe", recipe_.fingerprint},
                            {"models", models},
                            {"parts", parts}};
    if (tokenizer) {
      manifest["tokenizer"] = {{"path", recipe_.tokenizer},
                               {"vocab_size", tokenizer->vocab_size()},
                               {"hash", fmt::format("{:016x}", tokenizer_hash(*tokenizer))}};
    }
    base::save_json(recipe_.output + "/manifest.json", manifest);
  }

  // Of each input, from the text that is left of it.
  std::vector<double> choose_epochs(const std::vector<Fate>& fates) const {
    std::vector<MixSource> sources;
    for (const PipelineInput& input : recipe_.inputs)
      sources.push_back({0, recipe_.mixes_by_weight ? input.weight : input.epochs});
    if (!recipe_.mixes_by_weight && recipe_.mix_temperature == 0)
      return mix_epochs(sources, MixNumbers::epochs, 0, recipe_.most_epochs);
    for (size_t p = 0; p < parts_.size(); ++p) {
      const PartMarks marks = read_marks(folder_.stem(parts_[p]) + ".marks", num_bands());
      for (size_t d = 0; d < marks.documents.size(); ++d) {
        if (fates[first_document_[p] + d] == Fate::kept)
          sources[parts_[p].input].bytes += marks.documents[d].text_bytes;
      }
    }
    return mix_epochs(sources, recipe_.mixes_by_weight ? MixNumbers::weights : MixNumbers::epochs,
                      recipe_.mix_temperature, recipe_.most_epochs);
  }
  size_t num_bands() const { return recipe_.dedup_minhash ? static_cast<size_t>(recipe_.minhash.bands) : 0; }

  // Gives the number of documents written.
  int64_t finish_part(size_t i, const std::vector<Fate>& fates, double epochs, const tokenizer::Tokenizer* tokenizer,
                      const std::string& result) const {
    const WorkPart& part = parts_[i];
    fs::remove(marker_of(part));  // before what it speaks of is replaced
    PackedLines out(folder_.result("documents", part.number, ".jsonl.zst"));
    const std::string shard_path = folder_.result("tokens", part.number, kShardExtension);
    std::unique_ptr<TokenShardWriter> shard;
    int64_t kept = 0, bytes = 0, tokens = 0;
    nlohmann::json samples;
    LineReader lines(folder_.stem(part) + ".docs.zst", 0, UINT64_MAX, UINT64_MAX);
    std::string_view line;
    size_t d = 0;
    const size_t count = first_document_[i + 1] - first_document_[i];
    for (; d < count && lines.next(line) == LineReader::Status::line; ++d) {
      const Fate fate = fates[first_document_[i] + d];
      add_sample(samples[kFates[static_cast<size_t>(fate)]], line);
      const int64_t copies = fate == Fate::kept ? mix_copies(epochs, line) : 0;
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
    SINTER_CHECK(d == count, "'{}' gives {} documents of {}{}; remove the folder's work/ and run again",
                 folder_.stem(part) + ".docs.zst", d, count,
                 lines.problem().empty() ? "" : fmt::format(" ({})", lines.problem()));
    out.commit();
    nlohmann::json files{digest_of(folder_.result("documents", part.number, ".jsonl.zst"))};
    if (shard) {
      shard->commit();
      files.push_back(digest_of(shard_path));
    } else {
      std::error_code error;
      fs::remove(shard_path, error);
    }
    base::save_json(marker_of(part), {{"result", result},
                                      {"kept", kept},
                                      {"bytes", bytes},
                                      {"tokens", tokens},
                                      {"files", files},
                                      {"samples", samples}});
    return kept;
  }

  void add_sample(nlohmann::json& samples, std::string_view line) const {
    if (static_cast<int64_t>(samples.size()) >= recipe_.samples) return;
    const nlohmann::json document = nlohmann::json::parse(line);
    samples.push_back(sample_of(document.value("id", ""), document.value("url", ""), document.value("text", "")));
  }

  // A result by its name below the output, with what `sha256sum` says of it.
  nlohmann::json digest_of(const std::string& path) const {
    const base::MappedFile file(path);
    return {{"file", fs::path(path).lexically_relative(recipe_.output).string()},
            {"bytes", file.text().size()},
            {"sha256", sha256_hex(file.text())}};
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
    for (const WorkPart& part : parts_) {
      merge_statistics(report, base::load_json(folder_.stem(part) + ".json"), recipe_.samples);
      merge_samples(report, base::load_json(marker_of(part)), recipe_.samples);
    }
    summary_.documents = report["documents"];
    summary_.bytes = report["bytes"];
    summary_.bad_records = report["bad"];
    summary_.dropped = report["dropped"].get<std::map<std::string, int64_t>>();
    summary_.bad_reasons = report["bad_reasons"].get<std::map<std::string, int64_t>>();
    report["kept"] = summary_.kept;
    report["kept_bytes"] = summary_.kept_bytes;
    report["tokens"] = summary_.tokens;
    report["parts"] = summary_.parts;
    if (world_.rank() == 0) base::save_json(recipe_.output + "/report.json", report);
  }

  const PipelineRecipe& recipe_;
  comm::Communicator& world_;
  WorkFolder folder_;
  std::optional<tokenizer::Tokenizer> tokenizer_;
  std::vector<WorkPart> parts_;
  std::vector<size_t> first_document_;
  RunSummary summary_;
};

}  // namespace

RunSummary run_pipeline(const PipelineRecipe& recipe, comm::Communicator& world) { return Runner(recipe, world).run(); }

}  // namespace sinter::data

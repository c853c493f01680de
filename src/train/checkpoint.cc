#include "train/checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "io/safetensors.h"

namespace sinter::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kPrefix = "step-";
constexpr const char* kTemporary = ".tmp";
constexpr const char* kReplaced = ".replaced.tmp";

std::string step_name(int64_t step) { return fmt::format("{}{:08}", kPrefix, step); }

// The step of a checkpoint's folder; nothing for all other names, which are the user's.
std::optional<int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(std::strlen(kPrefix));
  int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  const bool is_number = error == std::errc() && end == name.data() + name.size();
  return is_number && step >= 0 && name.size() >= 8 ? std::optional(step) : std::nullopt;
}

// The checkpoints in a folder, by step; with `suffix` those whose names end in it.
std::map<int64_t, std::string> steps_in(const std::string& dir, std::string_view suffix = "") {
  std::map<int64_t, std::string> steps;
  for (const auto& entry : fs::directory_iterator(dir)) {
    std::string name = entry.path().filename().string();
    if (!name.ends_with(suffix) || !entry.is_directory()) continue;
    name.resize(name.size() - suffix.size());
    if (const std::optional<int64_t> step = step_of(name)) steps[*step] = entry.path().string();
  }
  return steps;
}

std::vector<int64_t> axes_of(const core::Tensor& t) {
  std::vector<int64_t> axes;
  for (int i = 0; i < t.shape().rank(); ++i) axes.push_back(t.shape()[i]);
  return axes;
}

// Reads keys of index.json with errors that name them.
class Reader {
 public:
  Reader(const json& object, std::string where) : object_(object), where_(std::move(where)) {
    SINTER_CHECK(object.is_object(), "{} is not a JSON object", where_);
  }
  const json& at(const char* key) const {
    auto it = object_.find(key);
    SINTER_CHECK(it != object_.end(), "{}: key '{}' is missing", where_, key);
    return *it;
  }
  bool has(const char* key) const { return object_.contains(key); }
  int64_t count(const char* key) const {
    const json& v = at(key);
    SINTER_CHECK(v.is_number_integer() && v >= 0 && v <= int64_t{1} << 56, "{}: '{}' is not a count", where_, key);
    return v.get<int64_t>();
  }
  std::string text(const char* key) const {
    SINTER_CHECK(at(key).is_string(), "{}: '{}' is not a string", where_, key);
    return at(key).get<std::string>();
  }
  const json& list(const char* key) const {
    SINTER_CHECK(at(key).is_array(), "{}: '{}' is not a list", where_, key);
    return at(key);
  }
  std::vector<std::string> texts(const char* key) const {
    std::vector<std::string> out;
    for (const json& v : list(key)) {
      SINTER_CHECK(v.is_string(), "{}: '{}' holds something that is not a string", where_, key);
      out.push_back(v.get<std::string>());
    }
    return out;
  }
  std::vector<double> numbers(const char* key) const {
    std::vector<double> out;
    for (const json& v : list(key)) {
      SINTER_CHECK(v.is_number(), "{}: '{}' holds something that is not a number", where_, key);
      out.push_back(v.get<double>());
    }
    return out;
  }

 private:
  const json& object_;
  std::string where_;
};

StateEntry parse_entry(const json& value, const std::string& origin) {
  Reader entry(value, origin + ": a tensor");
  StateEntry out{entry.text("kind"), entry.text("name"), {}, {}};
  const std::string where = fmt::format("{}: tensor '{}'", origin, state_key(out.kind, out.name));
  int64_t elements = 1;
  for (const json& axis : entry.list("shape")) {
    SINTER_CHECK(axis.is_number_integer() && axis > 0 && axis <= int64_t{1} << 40, "{}: shape is not a list of sizes",
                 where);
    out.shape.push_back(axis.get<int64_t>());
    SINTER_CHECK(elements <= (int64_t{1} << 48) / out.shape.back(), "{}: shape is too large", where);
    elements *= out.shape.back();
  }
  int64_t next = 0;
  for (const json& item : entry.list("pieces")) {
    Reader piece(item, where);
    StatePiece p{piece.text("file"), piece.count("begin"), piece.count("count"), 0};
    const std::string hash = piece.text("hash");
    SINTER_CHECK(hash.size() == 16 && hash.find_first_not_of("0123456789abcdef") == std::string::npos,
                 "{}: hash '{}' is not 16 hex digits", where, hash);
    p.hash = std::stoull(hash, nullptr, 16);
    SINTER_CHECK(p.file.find('/') == std::string::npos && p.file.size() < 200,
                 "{}: file '{}' is not in the state folder", where, p.file);
    SINTER_CHECK(p.begin == next, "{}: a piece begins at {}, expected {}", where, p.begin, next);
    next += p.count;
    out.pieces.push_back(std::move(p));
  }
  SINTER_CHECK(next == elements, "{}: pieces hold {} of {} elements", where, next, elements);
  return out;
}

std::string index_path(const std::string& folder) { return folder + "/state/index.json"; }

// What is no longer needed: a file in it that cannot be removed (open on a network file system, another's) costs disk
// space, and no checkpoint and no run.
void remove_or_warn(const std::string& folder) {
  std::error_code error;
  fs::remove_all(folder, error);
  if (error) base::log_warning("cannot remove '{}', which is of no more use: {}", folder, error.message());
}

}  // namespace

std::string state_key(const std::string& kind, const std::string& name) { return kind + "/" + name; }

StateIndex parse_state_index(std::string_view text, const std::string& origin) {
  const json value = base::parse_json(text, origin);
  Reader root(value, "'" + origin + "'");
  SINTER_CHECK(root.text("format") == "sinter state", "'{}' is not a checkpoint index", origin);
  SINTER_CHECK(root.count("version") == 1, "'{}': version {}; this program reads version 1", origin,
               root.count("version"));
  StateIndex index;
  index.run.step = root.count("step");
  index.run.updates = root.count("updates");
  index.run.tokens = root.count("tokens");
  index.run.guard = root.numbers("guard");
  index.run.noise_scale = root.numbers("noise_scale");
  if (root.has("loss_scale")) index.run.loss_scale = root.numbers("loss_scale");  // not in older ones
  if (root.has("kernel_choices")) index.run.kernel_choices = root.texts("kernel_choices");
  if (root.has("tokenizer")) index.run.tokenizer = root.text("tokenizer");
  index.run.recipe = root.text("recipe");
  index.ranks = root.count("ranks");
  for (const json& entry : root.list("tensors")) index.entries.push_back(parse_entry(entry, "'" + origin + "'"));
  return index;
}

CheckpointFolder::CheckpointFolder(std::string dir, int64_t keep, comm::Communicator& comm)
    : dir_(std::move(dir)), keep_(keep) {
  if (comm.rank() == 0) {
    std::error_code error;
    fs::create_directories(dir_, error);
    SINTER_CHECK(!error, "cannot create checkpoint.dir '{}': {}", dir_, error.message());
  }
  comm.barrier();
}

void CheckpointFolder::remove_leftovers() const {
  for (const auto& [step, old] : steps_in(dir_, kReplaced)) {  // see replace()
    if (fs::exists(path(step))) {
      remove_or_warn(old);
    } else {
      fs::rename(old, path(step));
    }
  }
  for (const auto& [step, path] : steps_in(dir_, kTemporary)) remove_or_warn(path);
}

std::optional<std::string> CheckpointFolder::find_latest() const {
  const std::string latest = dir_ + "/latest";
  const bool has_latest = fs::exists(index_path(latest));
  if (has_latest && fs::is_symlink(latest)) return latest;
  if (!fs::exists(dir_)) return std::nullopt;
  std::string best;
  for (const auto& [step, path] : steps_in(dir_)) {
    if (fs::exists(index_path(path))) best = path;
  }
  if (best.empty()) return has_latest ? std::optional(latest) : std::nullopt;
  if (fs::is_symlink(latest))
    base::log_warning("'{}' leads to no complete checkpoint (state/index.json is missing); taking '{}'", latest, best);
  return best;
}

std::string CheckpointFolder::path(int64_t step) const { return dir_ + "/" + step_name(step); }
std::string CheckpointFolder::temporary(int64_t step) const { return path(step) + kTemporary; }

void CheckpointFolder::begin(int64_t step) const {
  fs::remove_all(temporary(step));
  base::create_folders(temporary(step) + "/state");
}

void CheckpointFolder::discard(int64_t step) const {
  std::error_code ignored;
  fs::remove_all(temporary(step), ignored);
}

void CheckpointFolder::commit(int64_t step, const json& index) const {
  const std::string from = temporary(step), target = path(step);
  base::save_json(index_path(from), index);
  base::sync_folder(from);
  if (fs::exists(target)) {
    replace(from, target);
  } else {
    fs::rename(from, target);
  }
  base::sync_folder(dir_);
  try {
    move_latest(step);
    clean_up(step);
  } catch (const std::exception& e) {
    base::log_warning("the checkpoint '{}' is written, but the folder could not be put in order after it: {}", target,
                      e.what());
  }
}

// The same step saved again: swapped in one move, so that one of the two is always there. File systems that cannot swap
// (network ones often) have the old one stand aside for a moment, under a name that remove_leftovers() knows.
void CheckpointFolder::replace(const std::string& from, const std::string& target) const {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) {
    remove_or_warn(from);
    return;
  }
  SINTER_CHECK(errno == EINVAL || errno == ENOSYS || errno == ENOTSUP, "cannot replace '{}': {}", target,
               std::strerror(errno));
  const std::string old = target + kReplaced;
  fs::remove_all(old);
  fs::rename(target, old);
  fs::rename(from, target);
  remove_or_warn(old);
}

void CheckpointFolder::move_latest(int64_t step) const {
  const std::string latest = dir_ + "/latest", link = latest + kTemporary;
  if (fs::is_directory(fs::symlink_status(latest))) {  // copied with what the link led to
    std::string aside = latest + ".old";
    for (int i = 1; fs::exists(fs::symlink_status(aside)); ++i) aside = latest + ".old." + std::to_string(i);
    fs::rename(latest, aside);
    base::log_warning("'{}' was a folder, not the link to the newest checkpoint: it is now '{}'", latest, aside);
  }
  fs::remove(link);
  fs::create_directory_symlink(step_name(step), link);
  fs::rename(link, latest);
  base::sync_folder(dir_);
}

void CheckpointFolder::clean_up(int64_t newest) const {
  std::map<int64_t, std::string> steps = steps_in(dir_);
  // The first weights were asked for on their own (checkpoint.initial), so they are not old ones. Later steps are of a
  // run that was given up for an earlier checkpoint: not this one's to remove, until it gets there itself.
  steps.erase(0);
  steps.erase(steps.upper_bound(newest), steps.end());
  while (static_cast<int64_t>(steps.size()) > keep_) {
    const std::string oldest = steps.begin()->second, doomed = oldest + kTemporary;
    steps.erase(steps.begin());
    fs::rename(oldest, doomed);  // so that a kill in the middle of removing leaves nothing that looks complete
    remove_or_warn(doomed);
  }
}

namespace {

StateIndex load_index(const std::string& folder) {
  const std::string path = index_path(folder);
  SINTER_CHECK(fs::exists(path), "'{}' is not a checkpoint: there is no state/index.json in it", folder);
  return parse_state_index(base::read_file(path), path);
}

}  // namespace

RunState load_run_state(const std::string& folder) { return load_index(folder).run; }

bool has_state_tensor(const std::string& folder, const std::string& kind, const std::string& name) {
  const StateIndex index = load_index(folder);
  return std::any_of(index.entries.begin(), index.entries.end(),
                     [&](const StateEntry& entry) { return entry.kind == kind && entry.name == name; });
}

RunState load_checkpoint(const std::string& folder, const std::vector<StateTensor>& tensors) {
  const StateIndex index = load_index(folder);
  std::map<std::string, const StateEntry*> entries;
  for (const StateEntry& entry : index.entries) entries[state_key(entry.kind, entry.name)] = &entry;
  std::map<std::string, std::unique_ptr<io::SafetensorsFile>> files;
  for (const StateTensor& t : tensors) {
    const std::string key = state_key(t.kind, t.name);
    auto found = entries.find(key);
    SINTER_CHECK(found != entries.end(), "checkpoint '{}' has no '{}': it was made with another model or optimizer",
                 folder, key);
    const StateEntry& entry = *found->second;
    SINTER_CHECK(entry.shape == axes_of(t.values), "checkpoint '{}': '{}' has shape {}, this model's is {}", folder,
                 key, io::shape_to_string(entry.shape), t.values.shape().to_string());
    std::vector<float> values(static_cast<size_t>(t.values.num_elements()));
    for (const StatePiece& piece : entry.pieces) {
      std::unique_ptr<io::SafetensorsFile>& file = files[piece.file];
      if (!file) {
        const std::string file_path = folder + "/state/" + piece.file;
        SINTER_CHECK(fs::exists(file_path), "checkpoint '{}' is not whole: '{}' is missing; resume from another step",
                     folder, file_path);
        file = std::make_unique<io::SafetensorsFile>(file_path);
      }
      const io::TensorEntry* stored = file->find(key);
      SINTER_CHECK(stored && stored->dtype == base::DType::f32 && stored->num_elements() == piece.count,
                   "checkpoint file '{}' does not hold {} elements of '{}'", file->path(), piece.count, key);
      SINTER_CHECK(base::hash_bytes(stored->bytes) == piece.hash,
                   "checkpoint file '{}': '{}' is damaged (its hash does not fit); resume from another step",
                   file->path(), key);
      std::memcpy(values.data() + piece.begin, stored->bytes.data(), stored->bytes.size());
    }
    core::DeviceRuntime& device = core::runtime(t.values.device());
    // Exact where the tensor had this format when it was stored; a recipe may have changed it since.
    std::vector<std::byte> rounded;
    if (t.values.dtype() != base::DType::f32) {
      rounded.resize(t.values.bytes());
      base::convert_elements(base::DType::f32, values.data(), t.values.dtype(), rounded.data(), values.size());
    }
    const void* source = rounded.empty() ? static_cast<const void*>(values.data()) : rounded.data();
    device.copy_to_device(t.values.raw(), source, t.values.bytes(), device.stream());
    device.synchronize(device.stream());
  }
  return index.run;
}

}  // namespace sinter::train

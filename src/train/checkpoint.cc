#include "train/checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"

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
    move_link("latest", step);
    const json validation = index.value("validation", json::array());
    if (validation.size() > 1 && validation[1] == step) move_link("best", step);
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

void CheckpointFolder::move_link(const std::string& name, int64_t step) const {
  const std::string latest = dir_ + "/" + name, link = latest + kTemporary;
  if (fs::is_directory(fs::symlink_status(latest))) {  // copied with what the link led to
    std::string aside = latest + ".old";
    for (int i = 1; fs::exists(fs::symlink_status(aside)); ++i) aside = latest + ".old." + std::to_string(i);
    fs::rename(latest, aside);
    base::log_warning("'{}' was a folder, not a link to a checkpoint: it is now '{}'", latest, aside);
  }
  fs::remove(link);
  fs::create_directory_symlink(step_name(step), link);
  fs::rename(link, latest);
  base::sync_folder(dir_);
}

std::string CheckpointFolder::newest_but(const std::string& folder) const {
  std::string best;
  std::error_code absent;
  for (const auto& [step, path] : steps_in(dir_)) {
    if (fs::exists(index_path(path)) && !fs::equivalent(path, folder, absent)) best = path;
  }
  return best;
}

void CheckpointFolder::clean_up(int64_t newest) const {
  for (const std::string& oldest : old_checkpoints(dir_, keep_, newest)) {
    const std::string doomed = oldest + kTemporary;
    fs::rename(oldest, doomed);  // so that a kill in the middle of removing leaves nothing that looks complete
    remove_or_warn(doomed);
  }
}

std::vector<std::string> old_checkpoints(const std::string& dir, int64_t keep, int64_t newest) {
  if (!fs::is_directory(dir)) return {};
  std::map<int64_t, std::string> steps = steps_in(dir);
  // The first weights were asked for on their own (checkpoint.initial), so they are not old ones. Later steps are of a
  // run that was given up for an earlier checkpoint: not this one's to remove, until it gets there itself.
  steps.erase(0);
  steps.erase(steps.upper_bound(newest), steps.end());
  std::error_code none;
  const std::optional<int64_t> best = step_of(fs::read_symlink(dir + "/best", none).string());
  if (best && *best != newest) steps.erase(*best);
  std::vector<std::string> old;
  for (const auto& [step, path] : steps) {
    if (static_cast<int64_t>(steps.size() - old.size()) > keep) old.push_back(path);
  }
  return old;
}

}  // namespace sinter::train

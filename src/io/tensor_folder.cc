#include "io/tensor_folder.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"

namespace sinter::io {
namespace {

using base::fail;
namespace fs = std::filesystem;

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

std::string join(const std::string& folder, const std::string& name) { return (fs::path(folder) / name).string(); }

}  // namespace

bool has_tensors(const std::string& folder) {
  return fs::is_regular_file(join(folder, kSingle)) || fs::is_regular_file(join(folder, kIndex));
}

TensorFolder::TensorFolder(const std::string& folder) : folder_(folder) {
  SINTER_CHECK(fs::is_directory(folder), "'{}' is not a folder", folder);
  if (std::string index_path = join(folder, kIndex); fs::exists(index_path)) {
    open_index(index_path);
  } else {
    SINTER_CHECK(fs::exists(join(folder, kSingle)), "'{}' has neither {} nor {}", folder, kSingle, kIndex);
    files_.emplace_back(join(folder, kSingle));
    entries_ = files_.back().entries();
  }
  std::sort(entries_.begin(), entries_.end(),
            [](const TensorEntry& a, const TensorEntry& b) { return a.name < b.name; });
  index_.reserve(entries_.size());
  for (size_t i = 0; i < entries_.size(); ++i) index_[entries_[i].name] = i;
}

void TensorFolder::open_index(const std::string& index_path) {
  nlohmann::json index = base::load_json(index_path);
  SINTER_CHECK(index.is_object() && index.contains("weight_map") && index["weight_map"].is_object(),
               "'{}' has no object 'weight_map' (tensor name to file name)", index_path);
  std::map<std::string, size_t> opened;  // file name to its place in files_
  for (const auto& [name, value] : index["weight_map"].items()) {
    SINTER_CHECK(value.is_string(), "'{}': weight_map['{}'] is not a file name", index_path, name);
    const auto& file_name = value.get_ref<const std::string&>();
    SINTER_CHECK(!file_name.empty() && fs::path(file_name).filename() == fs::path(file_name) && file_name != "..",
                 "'{}': weight_map['{}'] is '{}'; expected the plain name of a file in the same folder", index_path,
                 name, file_name);
    auto [place, is_new] = opened.emplace(file_name, files_.size());
    if (is_new) {
      SINTER_CHECK(fs::exists(join(folder_, file_name)), "'{}' names '{}', which is not in the folder", index_path,
                   file_name);
      files_.emplace_back(join(folder_, file_name));
    }
    const TensorEntry* entry = files_[place->second].find(name);
    SINTER_CHECK(entry, "'{}' says that tensor '{}' is in '{}', but that file has no such tensor", index_path, name,
                 file_name);
    entries_.push_back(*entry);
  }
}

const TensorEntry* TensorFolder::find(std::string_view name) const {
  auto found = index_.find(name);
  return found == index_.end() ? nullptr : &entries_[found->second];
}

const TensorEntry& TensorFolder::get(std::string_view name) const {
  if (const TensorEntry* entry = find(name)) return *entry;
  std::vector<std::string> names;
  for (const TensorEntry& entry : entries_) names.push_back(entry.name);
  fail("'{}' has no tensor '{}'{}", folder_, name, base::did_you_mean(name, names));
}

uint64_t TensorFolder::size_bytes() const {
  uint64_t total = 0;
  for (const TensorEntry& entry : entries_) total += entry.bytes.size();
  return total;
}

TensorFolderWriter::TensorFolderWriter(std::string folder, uint64_t max_shard_bytes)
    : folder_(std::move(folder)), max_shard_bytes_(max_shard_bytes) {}

void TensorFolderWriter::declare(std::string name, base::DType dtype, std::vector<int64_t> shape) {
  SINTER_CHECK(shards_.empty(), "'{}': tensor '{}' is declared after the first write", folder_, name);
  declared_.push_back({std::move(name), dtype, std::move(shape)});
}

void TensorFolderWriter::open_shards() {
  std::vector<size_t> shard(declared_.size());  // per tensor
  size_t last = 0;
  uint64_t used = 0;
  for (size_t i = 0; i < declared_.size(); ++i) {
    uint64_t size = base::dtype_bytes(declared_[i].dtype);
    for (int64_t axis : declared_[i].shape) size *= static_cast<uint64_t>(axis);  // declare() below checks the product
    if (used > 0 && used + size > max_shard_bytes_) {
      ++last;
      used = 0;
    }
    used += size;
    total_bytes_ += size;
    shard[i] = last;
  }
  size_t count = last + 1;
  for (size_t i = 0; i < count; ++i) {
    file_names_.push_back(count == 1 ? kSingle : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, count));
    shards_.emplace_back(join(folder_, file_names_.back()));
  }
  for (size_t i = 0; i < declared_.size(); ++i) {
    SINTER_CHECK(shard_of_.emplace(declared_[i].name, shard[i]).second, "'{}': tensor '{}' is declared twice", folder_,
                 declared_[i].name);
    shards_[shard[i]].declare(declared_[i].name, declared_[i].dtype, declared_[i].shape);
  }
}

void TensorFolderWriter::write(std::string_view name, std::span<const std::byte> bytes) {
  if (shards_.empty()) open_shards();
  auto found = shard_of_.find(std::string(name));
  SINTER_CHECK(found != shard_of_.end(), "'{}': tensor '{}' was not declared", folder_, name);
  shards_[found->second].write(name, bytes);
}

void TensorFolderWriter::commit() {
  if (shards_.empty()) open_shards();
  for (SafetensorsWriter& shard : shards_) shard.commit();
  std::string index_path = join(folder_, kIndex);
  if (shards_.size() == 1) {  // an index left by an earlier, larger model would hide the new file
    fs::remove(index_path);
    return;
  }
  nlohmann::json weight_map = nlohmann::json::object();
  for (const auto& [name, shard] : shard_of_) weight_map[name] = file_names_[shard];
  base::save_json(index_path, {{"metadata", {{"total_size", total_bytes_}}}, {"weight_map", std::move(weight_map)}});
}

}  // namespace sinter::io

// A model folder's tensors, in one safetensors file or in several named by an index.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "io/safetensors.h"

namespace sinter::io {

// True when `folder` holds model.safetensors or model.safetensors.index.json.
bool has_tensors(const std::string& folder);

// All tensors of a folder with model.safetensors.index.json (its weight_map decides which file each tensor comes from)
// or else model.safetensors. Throws Error when neither is there, when the index names a missing file or a tensor that
// its file does not have, or when a file is not valid. Entries live as long as this object.
class TensorFolder {
 public:
  explicit TensorFolder(const std::string& folder);
  const std::vector<TensorEntry>& entries() const { return entries_; }  // by name
  const TensorEntry* find(std::string_view name) const;                 // null when there is none of that name
  const TensorEntry& get(std::string_view name) const;                  // throws Error with the nearest name
  const std::vector<SafetensorsFile>& files() const { return files_; }
  const std::string& path() const { return folder_; }
  uint64_t size_bytes() const;

 private:
  void open_index(const std::string& index_path);
  std::string folder_;
  std::vector<SafetensorsFile> files_;
  std::vector<TensorEntry> entries_;
  std::unordered_map<std::string_view, size_t> index_;  // keys view entries_
};

// Writes model.safetensors, or model-0000i-of-0000n.safetensors with their index when the tensors take more than
// `max_shard_bytes`; tensors fill the files in the order they are declared. Every file is atomic and the index comes
// last; to replace a whole folder at once, write to a new one and rename that. Same order of calls as
// SafetensorsWriter.
class TensorFolderWriter {
 public:
  explicit TensorFolderWriter(std::string folder, uint64_t max_shard_bytes = 5'000'000'000);
  void declare(std::string name, base::DType dtype, std::vector<int64_t> shape);
  void write(std::string_view name, std::span<const std::byte> bytes);
  void commit();

 private:
  struct Declared {
    std::string name;
    base::DType dtype;
    std::vector<int64_t> shape;
  };
  void open_shards();
  std::string folder_;
  uint64_t max_shard_bytes_;
  uint64_t total_bytes_ = 0;
  std::vector<Declared> declared_;
  std::vector<std::string> file_names_;
  std::vector<SafetensorsWriter> shards_;
  std::unordered_map<std::string, size_t> shard_of_;
};

}  // namespace sinter::io

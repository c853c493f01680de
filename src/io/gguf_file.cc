#include <cstdio>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/mapped_pages.h"
#include "base/text.h"
#include "io/gguf.h"

namespace sinter::io {
namespace {

namespace fs = std::filesystem;

// "model-00002-of-00005.gguf": what stands before "-00002-of-", or "" when the name is of another form.
std::string split_stem(const std::string& path, int64_t count) {
  const std::string ending = fmt::format("-of-{:05}.gguf", count);
  const size_t number = ending.size() + 6;  // "-00002"
  if (!path.ends_with(ending) || path.size() < number) return "";
  return path.substr(0, path.size() - number);
}

}  // namespace

bool is_gguf(const std::string& path) {
  if (fs::is_directory(path)) return false;
  if (path.ends_with(".gguf")) return true;
  std::ifstream file(path, std::ios::binary);
  char magic[4] = {};
  return file.read(magic, sizeof magic) && std::string_view(magic, 4) == "GGUF";
}

GgufFile::GgufFile(const std::string& path) : path_(path) {
  maps_.push_back(std::make_unique<base::MappedFile>(path));
  header_ = parse_gguf(maps_[0]->bytes(), path);
  for (size_t i = 0; i < header_.metadata.size(); ++i) by_key_[header_.metadata[i].first] = i;
  open_splits(path);
  for (size_t i = 0; i < tensors_.size(); ++i) {
    SINTER_CHECK(by_name_.emplace(tensors_[i].name, i).second, "'{}': tensor '{}' stands in two of its files", path_,
                 tensors_[i].name);
  }
}

void GgufFile::open_splits(const std::string& path) {
  const int64_t count = integer("split.count", 1), number = integer("split.no", 0);
  if (count <= 1) {
    tensors_ = header_.tensors;
    return;
  }
  const std::string stem = split_stem(path, count);
  SINTER_CHECK(count <= 99999 && number >= 0 && number < count && !stem.empty(),
               "'{}' is number {} of {} files of a split model, but its name is not of the form "
               "NAME-{:05}-of-{:05}.gguf, by which the others are found",
               path, number + 1, count, number + 1, count);
  auto name_of = [&](int64_t i) { return fmt::format("{}-{:05}-of-{:05}.gguf", stem, i + 1, count); };
  for (int64_t i = 0; i < count; ++i) {
    SINTER_CHECK(fs::exists(name_of(i)), "'{}' is one of {} files of a split model, but '{}' is not there", path, count,
                 name_of(i));
  }
  maps_.clear();
  by_key_.clear();
  for (int64_t i = 0; i < count; ++i) {
    maps_.push_back(std::make_unique<base::MappedFile>(name_of(i)));
    GgufHeader header = parse_gguf(maps_.back()->bytes(), name_of(i));
    for (GgufTensor& tensor : header.tensors) {
      tensor.file = static_cast<size_t>(i);
      tensors_.push_back(tensor);
    }
    if (i == 0) header_ = std::move(header);
  }
  path_ = name_of(0);
  for (size_t i = 0; i < header_.metadata.size(); ++i) by_key_[header_.metadata[i].first] = i;
  const int64_t expected = integer("split.tensors.count", static_cast<int64_t>(tensors_.size()));
  SINTER_CHECK(expected == static_cast<int64_t>(tensors_.size()),
               "'{}' announces {} tensors in its {} split files; they hold {}", path_, expected, count,
               tensors_.size());
}

const GgufTensor* GgufFile::find_tensor(std::string_view name) const {
  auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

const GgufTensor& GgufFile::tensor(std::string_view name) const {
  if (const GgufTensor* tensor = find_tensor(name)) return *tensor;
  std::vector<std::string> names;
  for (const GgufTensor& tensor : tensors_) names.push_back(tensor.name);
  base::fail("'{}' has no tensor '{}'{}", path_, name, base::did_you_mean(name, names));
}

uint64_t GgufFile::size_bytes() const {
  uint64_t total = 0;
  for (const auto& map : maps_) total += map->bytes().size();
  return total;
}

uint64_t GgufFile::tensor_bytes() const {
  uint64_t total = 0;
  for (const GgufTensor& tensor : tensors_) total += tensor.bytes.size();
  return total;
}

const GgufValue* GgufFile::find(std::string_view key) const {
  auto found = by_key_.find(key);
  return found == by_key_.end() ? nullptr : &header_.metadata[found->second].second;
}

const GgufValue& GgufFile::get(std::string_view key) const {
  const GgufValue* value = find(key);
  SINTER_CHECK(value, "'{}' has no key '{}'", path_, key);
  return *value;
}

int64_t GgufFile::integer(std::string_view key) const {
  const GgufValue& value = get(key);
  SINTER_CHECK(value.is_integer(), "'{}': key '{}' is {}; expected a whole number", path_, key,
               gguf_type_name(value.type));
  return value.integer();
}
int64_t GgufFile::integer(std::string_view key, int64_t otherwise) const {
  return find(key) ? integer(key) : otherwise;
}

double GgufFile::number(std::string_view key) const {
  const GgufValue& value = get(key);
  SINTER_CHECK(value.is_number(), "'{}': key '{}' is {}; expected a number", path_, key, gguf_type_name(value.type));
  return value.number();
}
double GgufFile::number(std::string_view key, double otherwise) const { return find(key) ? number(key) : otherwise; }

bool GgufFile::boolean(std::string_view key, bool otherwise) const {
  const GgufValue* value = find(key);
  if (!value) return otherwise;
  SINTER_CHECK(value->type == GgufType::boolean, "'{}': key '{}' is {}; expected a boolean", path_, key,
               gguf_type_name(value->type));
  return value->boolean();
}

std::string GgufFile::text(std::string_view key) const {
  const GgufValue& value = get(key);
  SINTER_CHECK(value.type == GgufType::string, "'{}': key '{}' is {}; expected a string", path_, key,
               gguf_type_name(value.type));
  return std::string(value.string());
}
std::string GgufFile::text(std::string_view key, const std::string& otherwise) const {
  return find(key) ? text(key) : otherwise;
}

std::vector<std::string_view> GgufFile::strings(std::string_view key) const {
  const GgufValue& value = get(key);
  SINTER_CHECK(value.is_array() && (value.element == GgufType::string || value.count == 0),
               "'{}': key '{}' is no array of strings", path_, key);
  return value.strings();
}

std::vector<double> GgufFile::numbers(std::string_view key) const {
  const GgufValue& value = get(key);
  SINTER_CHECK(value.is_array() && value.element != GgufType::string, "'{}': key '{}' is no array of numbers", path_,
               key);
  return value.numbers();
}

void GgufFile::drop_pages(std::span<const std::byte> bytes) const { base::drop_mapped_pages(bytes); }

}  // namespace sinter::io

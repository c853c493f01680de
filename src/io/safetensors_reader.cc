#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <tuple>
#include <unordered_set>

#include "base/error.h"
#include "io/safetensors.h"

namespace sinter::io {
namespace {

using base::fail;
using nlohmann::json;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the format's own reader
constexpr int kMaxDepth = 3;                       // header > tensor > shape or data_offsets
constexpr std::string_view kMetadata = "__metadata__";

// JSON objects silently keep the last of two equal keys and accept any nesting; a header may do neither.
json parse_header_json(std::string_view text, std::string_view origin) {
  std::unordered_set<std::string> names;
  auto check = [&](int depth, json::parse_event_t event, json& parsed) {
    SINTER_CHECK(depth <= kMaxDepth, "'{}': the safetensors header nests deeper than {} levels", origin, kMaxDepth);
    if (event == json::parse_event_t::key && depth == 1) {
      const auto& name = parsed.get_ref<const std::string&>();
      SINTER_CHECK(names.insert(name).second, "'{}': tensor '{}' stands twice in the safetensors header", origin, name);
    }
    return true;
  };
  try {
    return json::parse(text, check);
  } catch (const json::exception& e) {
    fail("'{}': the safetensors header is not valid JSON: {}", origin, e.what());
  }
}

uint64_t unsigned_number(const json& value, std::string_view origin, std::string_view name, std::string_view key) {
  SINTER_CHECK(value.is_number_unsigned(), "'{}': tensor '{}': {} holds {}; expected a whole number of 0 or more",
               origin, name, key, value.dump(-1, ' ', false, json::error_handler_t::replace));
  return value.get<uint64_t>();
}

base::DType tensor_dtype(const json& value, std::string_view origin, std::string_view name) {
  SINTER_CHECK(value.is_string(), "'{}': tensor '{}': dtype is not text", origin, name);
  const auto& text = value.get_ref<const std::string&>();
  for (int i = 0; i <= static_cast<int>(base::DType::f8e5m2); ++i) {
    auto dtype = static_cast<base::DType>(i);
    if (base::dtype_safetensors_name(dtype) == text) return dtype;
  }
  fail(
      "'{}': tensor '{}' has the unknown dtype '{}'; known: F64, F32, F16, BF16, F8_E4M3, F8_E5M2, I8..I64, U8..U64, "
      "BOOL",
      origin, name, text);
}

// An entry and where its bytes begin and end after the header.
struct Placed {
  TensorEntry entry;
  uint64_t begin = 0, end = 0;
};

Placed parse_tensor(const std::string& name, const json& value, std::string_view origin) {
  SINTER_CHECK(value.is_object(), "'{}': tensor '{}' is not described by an object", origin, name);
  for (const auto& [key, unused] : value.items()) {
    SINTER_CHECK(key == "dtype" || key == "shape" || key == "data_offsets",
                 "'{}': tensor '{}' has the unknown key '{}'; expected dtype, shape, data_offsets", origin, name, key);
  }
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    SINTER_CHECK(value.contains(key), "'{}': tensor '{}' has no '{}'", origin, name, key);
  }
  Placed placed;
  TensorEntry& entry = placed.entry;
  entry.name = name;
  entry.dtype = tensor_dtype(value["dtype"], origin, name);
  const json& shape = value["shape"];
  SINTER_CHECK(shape.is_array(), "'{}': tensor '{}': shape is not a list", origin, name);
  uint64_t size_bytes = base::dtype_bytes(entry.dtype);
  for (const json& axis : shape) {
    uint64_t size = unsigned_number(axis, origin, name, "shape");
    SINTER_CHECK(size <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) &&
                     !__builtin_mul_overflow(size_bytes, size, &size_bytes),
                 "'{}': tensor '{}': shape {} is too large", origin, name, shape.dump());
    entry.shape.push_back(static_cast<int64_t>(size));
  }
  const json& offsets = value["data_offsets"];
  SINTER_CHECK(offsets.is_array() && offsets.size() == 2, "'{}': tensor '{}': data_offsets is not a pair", origin,
               name);
  placed.begin = unsigned_number(offsets[0], origin, name, "data_offsets");
  placed.end = unsigned_number(offsets[1], origin, name, "data_offsets");
  SINTER_CHECK(placed.begin <= placed.end, "'{}': tensor '{}': data_offsets [{}, {}] run backwards", origin, name,
               placed.begin, placed.end);
  SINTER_CHECK(placed.end - placed.begin == size_bytes,
               "'{}': tensor '{}': data_offsets give {} bytes, but shape {} of {} takes {}", origin, name,
               placed.end - placed.begin, shape_to_string(entry.shape), base::dtype_safetensors_name(entry.dtype),
               size_bytes);
  return placed;
}

// The bytes after the header must be covered by the tensors exactly: no overlap, no hole, nothing beyond the end.
void place_bytes(std::vector<Placed>& tensors, std::span<const std::byte> data, std::string_view origin) {
  std::sort(tensors.begin(), tensors.end(), [](const Placed& a, const Placed& b) {
    return std::tie(a.begin, a.end, a.entry.name) < std::tie(b.begin, b.end, b.entry.name);
  });
  uint64_t covered = 0;
  std::string_view previous = "";
  for (Placed& t : tensors) {
    SINTER_CHECK(t.end <= data.size(),
                 "'{}': tensor '{}' ends at byte {} of {} bytes of data; the file is cut short or its header is wrong",
                 origin, t.entry.name, t.end, data.size());
    SINTER_CHECK(t.begin >= covered, "'{}': tensors '{}' and '{}' overlap", origin, previous, t.entry.name);
    SINTER_CHECK(t.begin == covered, "'{}': {} bytes before tensor '{}' belong to no tensor", origin, t.begin - covered,
                 t.entry.name);
    t.entry.bytes = data.subspan(t.begin, t.end - t.begin);
    covered = t.end;
    previous = t.entry.name;
  }
  SINTER_CHECK(covered == data.size(), "'{}': {} bytes at the end belong to no tensor", origin, data.size() - covered);
}

}  // namespace

int64_t TensorEntry::num_elements() const { return static_cast<int64_t>(bytes.size() / base::dtype_bytes(dtype)); }

std::string shape_to_string(std::span<const int64_t> shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + ")";
}

SafetensorsHeader parse_safetensors(std::span<const std::byte> file, std::string_view origin) {
  uint64_t length = 0;
  SINTER_CHECK(file.size() >= sizeof length, "'{}' has {} bytes; a safetensors file has at least 8", origin,
               file.size());
  std::memcpy(&length, file.data(), sizeof length);
  SINTER_CHECK(length <= kMaxHeaderBytes, "'{}' claims a header of {} bytes; the format allows {} (is it safetensors?)",
               origin, length, kMaxHeaderBytes);
  SINTER_CHECK(length <= file.size() - sizeof length,
               "'{}' claims a header of {} bytes but has only {}; it is cut short", origin, length,
               file.size() - sizeof length);
  std::string_view text(reinterpret_cast<const char*>(file.data()) + sizeof length, length);
  SINTER_CHECK(!text.empty() && text.front() == '{', "'{}': the safetensors header does not begin with '{{'", origin);
  json root = parse_header_json(text, origin);

  SafetensorsHeader header;
  std::vector<Placed> tensors;
  tensors.reserve(root.size());
  for (const auto& [name, value] : root.items()) {
    if (name != kMetadata) {
      tensors.push_back(parse_tensor(name, value, origin));
      continue;
    }
    SINTER_CHECK(value.is_object(), "'{}': __metadata__ is not an object", origin);
    for (const auto& [key, item] : value.items()) {
      SINTER_CHECK(item.is_string(), "'{}': __metadata__ key '{}' is not text", origin, key);
      header.metadata[key] = item.get<std::string>();
    }
  }
  place_bytes(tensors, file.subspan(sizeof length + length), origin);
  header.entries.reserve(tensors.size());
  for (Placed& t : tensors) header.entries.push_back(std::move(t.entry));
  return header;
}

SafetensorsFile::SafetensorsFile(const std::string& path) : map_(path), header_(parse_safetensors(map_.bytes(), path)) {
  index_.reserve(header_.entries.size());
  for (size_t i = 0; i < header_.entries.size(); ++i) index_[header_.entries[i].name] = i;
}

const TensorEntry* SafetensorsFile::find(std::string_view name) const {
  auto found = index_.find(name);
  return found == index_.end() ? nullptr : &header_.entries[found->second];
}

}  // namespace sinter::io

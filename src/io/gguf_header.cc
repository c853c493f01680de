#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <unordered_set>

#include "base/error.h"
#include "base/text.h"
#include "io/gguf.h"

namespace sinter::io {
namespace {

using base::fail;

constexpr std::string_view kMagic = "GGUF";
constexpr uint64_t kMaxTensorName = 64;  // the format's limit
constexpr uint64_t kMaxKeyLength = 65535;
constexpr uint32_t kMaxAxes = 4;

// Bytes of one element; 0 for strings and arrays.
size_t bytes_of_type(GgufType type) {
  switch (type) {
    case GgufType::u8:
    case GgufType::i8:
    case GgufType::boolean:
      return 1;
    case GgufType::u16:
    case GgufType::i16:
      return 2;
    case GgufType::u32:
    case GgufType::i32:
    case GgufType::f32:
      return 4;
    case GgufType::u64:
    case GgufType::i64:
    case GgufType::f64:
      return 8;
    case GgufType::string:
    case GgufType::array:
      return 0;
  }
  return 0;
}

// Walks through the bytes of a file. `what` says in an error what was being read.
class Cursor {
 public:
  Cursor(std::span<const std::byte> file, std::string_view origin) : file_(file), origin_(origin) {}

  size_t position() const { return position_; }
  size_t left() const { return file_.size() - position_; }
  std::string_view origin() const { return origin_; }

  std::span<const std::byte> take(uint64_t count, std::string_view what) {
    SINTER_CHECK(count <= left(), "'{}' is truncated: it ends at byte {} within {}", origin_, file_.size(), what);
    auto bytes = file_.subspan(position_, static_cast<size_t>(count));
    position_ += static_cast<size_t>(count);
    return bytes;
  }
  template <class T>
  T read(std::string_view what) {
    T value;
    std::memcpy(&value, take(sizeof value, what).data(), sizeof value);
    return value;
  }
  // A length and so many bytes.
  std::string_view text(std::string_view what) {
    const auto length = read<uint64_t>(what);
    SINTER_CHECK(length <= left(), "'{}' is truncated or broken: {} has a length of {} bytes, with {} left in the file",
                 origin_, what, length, left());
    auto bytes = take(length, what);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

 private:
  std::span<const std::byte> file_;
  std::string_view origin_;
  size_t position_ = 0;
};

// Whether text is well-formed UTF-8.
bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto first = static_cast<unsigned char>(text[i]);
    const int extra = first < 0x80                    ? 0
                      : first >= 0xc2 && first < 0xe0 ? 1
                      : first >= 0xe0 && first < 0xf0 ? 2
                      : first >= 0xf0 && first < 0xf5 ? 3
                                                      : -1;
    if (extra < 0 || i + static_cast<size_t>(extra) >= text.size()) return false;
    uint32_t code = extra == 0 ? first : first & (0x3fu >> extra);
    for (int k = 1; k <= extra; ++k) {
      const auto next = static_cast<unsigned char>(text[i + static_cast<size_t>(k)]);
      if ((next & 0xc0) != 0x80) return false;
      code = code << 6 | (next & 0x3fu);
    }
    constexpr uint32_t kFirstOf[] = {0, 0x80, 0x800, 0x10000};
    if (code < kFirstOf[extra] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return false;
    i += static_cast<size_t>(extra) + 1;
  }
  return true;
}

GgufType read_type(Cursor& cursor, std::string_view key) {
  const auto type = cursor.read<uint32_t>(fmt::format("the type of key '{}'", key));
  SINTER_CHECK(type <= static_cast<uint32_t>(GgufType::f64),
               "'{}': key '{}' has the unknown type {}; the format knows 0 to 12", cursor.origin(), key, type);
  return static_cast<GgufType>(type);
}

void check_string(std::string_view text, std::string_view key, std::string_view origin) {
  SINTER_CHECK(is_utf8(text), "'{}': the value of key '{}' is not UTF-8", origin, key);
}

GgufValue read_value(Cursor& cursor, std::span<const std::byte> file, std::string_view key) {
  GgufValue value;
  value.type = value.element = read_type(cursor, key);
  const std::string what = fmt::format("the value of key '{}'", key);
  if (value.type == GgufType::string) {
    const std::string_view text = cursor.text(what);
    check_string(text, key, cursor.origin());
    value.bytes = std::as_bytes(std::span(text));
    return value;
  }
  if (value.type != GgufType::array) {
    value.bytes = cursor.take(bytes_of_type(value.type), what);
    SINTER_CHECK(value.type != GgufType::boolean || value.bytes[0] <= std::byte{1},
                 "'{}': key '{}' is a boolean of {}; expected 0 or 1", cursor.origin(), key,
                 std::to_integer<int>(value.bytes[0]));
    return value;
  }
  value.element = read_type(cursor, key);
  SINTER_CHECK(value.element != GgufType::array, "'{}': key '{}' is an array of arrays, which is not supported",
               cursor.origin(), key);
  value.count = cursor.read<uint64_t>(what);
  const uint64_t least = value.element == GgufType::string ? 8 : bytes_of_type(value.element);
  SINTER_CHECK(
      value.count <= cursor.left() / least,
      "'{}' is truncated or broken: key '{}' announces an array of {} elements, with {} bytes left in the file",
      cursor.origin(), key, value.count, cursor.left());
  const size_t begin = cursor.position();
  if (value.element != GgufType::string) {
    cursor.take(value.count * least, what);
  } else {
    for (uint64_t i = 0; i < value.count; ++i) check_string(cursor.text(what), key, cursor.origin());
  }
  value.bytes = file.subspan(begin, cursor.position() - begin);
  return value;
}

void read_metadata(Cursor& cursor, std::span<const std::byte> file, uint64_t count, GgufHeader& header) {
  std::unordered_set<std::string_view> keys;
  header.metadata.reserve(static_cast<size_t>(count));
  for (uint64_t i = 0; i < count; ++i) {
    const std::string_view key = cursor.text(fmt::format("key {} of {}", i + 1, count));
    SINTER_CHECK(!key.empty(), "'{}': key {} of {} is empty", cursor.origin(), i + 1, count);
    SINTER_CHECK(key.size() <= kMaxKeyLength, "'{}': key {} has a length of {} bytes; the format allows {}",
                 cursor.origin(), i + 1, key.size(), kMaxKeyLength);
    SINTER_CHECK(is_utf8(key), "'{}': key {} of {} is not UTF-8", cursor.origin(), i + 1, count);
    SINTER_CHECK(keys.insert(key).second, "'{}': key '{}' stands there twice", cursor.origin(), key);
    header.metadata.emplace_back(std::string(key), read_value(cursor, file, key));
  }
}

// The format of a tensor's numbers; throws for numbers that files do not have (any more).
void set_format(GgufTensor& tensor, uint32_t type, std::string_view origin) {
  struct Plain {
    uint32_t type;
    base::DType dtype;
  };
  using enum base::DType;
  for (const Plain& plain :
       {Plain{0, f32}, {1, f16}, {30, bf16}, {28, f64}, {24, i8}, {25, i16}, {26, i32}, {27, i64}}) {
    if (plain.type != type) continue;
    tensor.dtype = plain.dtype;
    return;
  }
  const base::WeightFormatInfo* info = base::find_ggml_weight_format(type);
  SINTER_CHECK(info, "'{}': tensor '{}' has the type {}, which is not known{}", origin, tensor.name, type,
               type == 4 || type == 5 || (type >= 31 && type <= 33) || (type >= 36 && type <= 38)
                   ? " (it was removed from the format); make the file again"
                   : "");
  tensor.format = info->format;
}

// Bytes of a tensor; throws when rows are no whole blocks or the size does not fit 64 bits.
uint64_t check_size(const GgufTensor& tensor, std::string_view origin) {
  uint64_t elements = 1, bytes = 0;
  for (int64_t axis : tensor.shape) {
    SINTER_CHECK(!__builtin_mul_overflow(elements, static_cast<uint64_t>(axis), &elements) &&
                     elements <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()),
                 "'{}': tensor '{}' has more elements than 63 bits can count", origin, tensor.name);
  }
  if (tensor.format == base::WeightFormat::plain) {
    SINTER_CHECK(!__builtin_mul_overflow(elements, base::dtype_bytes(tensor.dtype), &bytes),
                 "'{}': tensor '{}' has more bytes than 64 bits can count", origin, tensor.name);
    return bytes;
  }
  const base::WeightFormatInfo& info = base::info_of(tensor.format);
  SINTER_CHECK(tensor.columns() % info.block_elements == 0,
               "'{}': tensor '{}' has rows of {} elements; {} needs a multiple of {}", origin, tensor.name,
               tensor.columns(), info.name, info.block_elements);
  SINTER_CHECK(!__builtin_mul_overflow(elements / static_cast<uint64_t>(info.block_elements),
                                       static_cast<uint64_t>(info.block_bytes), &bytes),
               "'{}': tensor '{}' has more bytes than 64 bits can count", origin, tensor.name);
  return bytes;
}

struct Place {
  uint64_t begin, bytes;
  size_t tensor;
};

std::vector<Place> read_tensor_table(Cursor& cursor, uint64_t count, GgufHeader& header) {
  std::unordered_set<std::string> names;
  std::vector<Place> places;
  header.tensors.reserve(static_cast<size_t>(count));
  for (uint64_t i = 0; i < count; ++i) {
    GgufTensor tensor;
    const std::string what = fmt::format("the entry of tensor {} of {}", i + 1, count);
    const std::string_view name = cursor.text("the name of a tensor in " + what);
    SINTER_CHECK(name.size() <= kMaxTensorName, "'{}': the name of tensor {} has {} bytes; the format allows {}",
                 cursor.origin(), i + 1, name.size(), kMaxTensorName);
    SINTER_CHECK(!name.empty() && is_utf8(name), "'{}': the name of tensor {} is empty or not UTF-8", cursor.origin(),
                 i + 1);
    tensor.name = name;
    SINTER_CHECK(names.insert(tensor.name).second, "'{}': tensor '{}' stands there twice", cursor.origin(),
                 tensor.name);
    const auto axes = cursor.read<uint32_t>(what);
    SINTER_CHECK(axes <= kMaxAxes, "'{}': tensor '{}' has {} dimensions; the format allows {}", cursor.origin(),
                 tensor.name, axes, kMaxAxes);
    for (uint32_t axis = 0; axis < axes; ++axis) {
      const auto size = cursor.read<uint64_t>(what);
      SINTER_CHECK(size <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()),
                   "'{}': tensor '{}': dimension {} is {}; expected 0 to 2^63 - 1", cursor.origin(), tensor.name, axis,
                   static_cast<int64_t>(size));
      tensor.shape.push_back(static_cast<int64_t>(size));
    }
    std::reverse(tensor.shape.begin(), tensor.shape.end());
    set_format(tensor, cursor.read<uint32_t>(what), cursor.origin());
    tensor.offset = cursor.read<uint64_t>(what);
    SINTER_CHECK(tensor.offset % header.alignment == 0,
                 "'{}': tensor '{}' has the offset {}, which is no multiple of the alignment {}", cursor.origin(),
                 tensor.name, tensor.offset, header.alignment);
    places.push_back({tensor.offset, check_size(tensor, cursor.origin()), header.tensors.size()});
    header.tensors.push_back(std::move(tensor));
  }
  return places;
}

// Every tensor within the file, none over another.
void place_tensors(std::vector<Place> places, std::span<const std::byte> file, std::string_view origin,
                   GgufHeader& header) {
  if (places.empty()) return;
  SINTER_CHECK(header.data_offset <= file.size(),
               "'{}' is truncated: with an alignment of {} the data begin at byte {}, but the file has {}", origin,
               header.alignment, header.data_offset, file.size());
  const std::span<const std::byte> data = file.subspan(static_cast<size_t>(header.data_offset));
  std::stable_sort(places.begin(), places.end(), [](const Place& a, const Place& b) { return a.begin < b.begin; });
  uint64_t covered = 0;
  for (const Place& place : places) {
    GgufTensor& tensor = header.tensors[place.tensor];
    SINTER_CHECK(place.begin <= data.size() && place.bytes <= data.size() - place.begin,
                 "'{}' is truncated or broken: tensor '{}' of {} bytes begins at {} of {} bytes of data", origin,
                 tensor.name, place.bytes, place.begin, data.size());
    SINTER_CHECK(place.begin >= covered, "'{}': tensor '{}' lies over another one", origin, tensor.name);
    tensor.bytes = data.subspan(static_cast<size_t>(place.begin), static_cast<size_t>(place.bytes));
    covered = place.begin + place.bytes;
  }
}

// general.alignment, before the table is read.
void read_alignment(GgufHeader& header, std::string_view origin) {
  for (const auto& [key, value] : header.metadata) {
    if (key != "general.alignment") continue;
    SINTER_CHECK(value.type == GgufType::u32, "'{}': general.alignment is {}; expected u32", origin,
                 gguf_type_name(value.type));
    header.alignment = static_cast<uint64_t>(value.integer());
    SINTER_CHECK(std::has_single_bit(header.alignment), "'{}': general.alignment is {}; expected a power of two",
                 origin, header.alignment);
  }
}

}  // namespace

std::string_view gguf_type_name(GgufType type) {
  constexpr std::string_view kNames[] = {"u8",      "i8",     "u16",   "i16", "u32", "i32", "f32",
                                         "boolean", "string", "array", "u64", "i64", "f64"};
  return kNames[static_cast<size_t>(type)];
}

GgufHeader parse_gguf(std::span<const std::byte> file, std::string_view origin) {
  Cursor cursor(file, origin);
  GgufHeader header;
  const auto magic = cursor.take(kMagic.size(), "the magic number");
  SINTER_CHECK(std::memcmp(magic.data(), kMagic.data(), kMagic.size()) == 0,
               "'{}' does not begin with the magic 'GGUF': it is no GGUF file", origin);
  header.version = cursor.read<uint32_t>("the header");
  SINTER_CHECK((header.version & 0xffff) != 0 || header.version == 0 || (header.version >> 24) == 0 ||
                   header.version == 0x80000000u,
               "'{}' is a big-endian file (version {:#x}); expected little-endian", origin, header.version);
  SINTER_CHECK(header.version == 2 || header.version == 3, "'{}' has GGUF version {}; versions 2 and 3 are read",
               origin, header.version);
  const auto num_tensors = cursor.read<uint64_t>("the header"), num_keys = cursor.read<uint64_t>("the header");
  constexpr uint64_t kLeastPerTensor = 8 + 4 + 4 + 8, kLeastPerKey = 8 + 4 + 1;
  SINTER_CHECK(num_tensors <= file.size() / kLeastPerTensor && num_keys <= file.size() / kLeastPerKey,
               "'{}' is truncated or broken: a count of {} tensors and {} keys cannot be in a file of {} bytes", origin,
               num_tensors, static_cast<int64_t>(num_keys), file.size());
  read_metadata(cursor, file, num_keys, header);
  read_alignment(header, origin);
  std::vector<Place> places = read_tensor_table(cursor, num_tensors, header);
  header.data_offset = (cursor.position() + header.alignment - 1) / header.alignment * header.alignment;
  place_tensors(std::move(places), file, origin, header);
  return header;
}

// ---- values --------------------------------------------------------------------------------------------------------

namespace {

template <class T>
T load(std::span<const std::byte> bytes, uint64_t index = 0) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof value, sizeof value);
  return value;
}

double number_at(GgufType type, std::span<const std::byte> bytes, uint64_t i) {
  switch (type) {
    case GgufType::u8:
    case GgufType::boolean:
      return load<uint8_t>(bytes, i);
    case GgufType::i8:
      return load<int8_t>(bytes, i);
    case GgufType::u16:
      return load<uint16_t>(bytes, i);
    case GgufType::i16:
      return load<int16_t>(bytes, i);
    case GgufType::u32:
      return load<uint32_t>(bytes, i);
    case GgufType::i32:
      return load<int32_t>(bytes, i);
    case GgufType::f32:
      return static_cast<double>(load<float>(bytes, i));
    case GgufType::u64:
      return static_cast<double>(load<uint64_t>(bytes, i));
    case GgufType::i64:
      return static_cast<double>(load<int64_t>(bytes, i));
    case GgufType::f64:
      return load<double>(bytes, i);
    default:
      return 0;
  }
}

}  // namespace

bool GgufValue::is_integer() const { return type <= GgufType::i32 || type == GgufType::u64 || type == GgufType::i64; }
bool GgufValue::is_number() const { return is_integer() || type == GgufType::f32 || type == GgufType::f64; }

int64_t GgufValue::integer() const {
  if (type == GgufType::i64) return load<int64_t>(bytes);
  if (type == GgufType::u64)
    return static_cast<int64_t>(
        std::min<uint64_t>(load<uint64_t>(bytes), static_cast<uint64_t>(std::numeric_limits<int64_t>::max())));
  return static_cast<int64_t>(number_at(type, bytes, 0));
}

double GgufValue::number() const { return number_at(type, bytes, 0); }

std::string_view GgufValue::string() const { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

std::vector<std::string_view> GgufValue::strings() const {
  std::vector<std::string_view> all;
  all.reserve(static_cast<size_t>(count));
  const auto* text = reinterpret_cast<const char*>(bytes.data());
  for (size_t at = 0; at < bytes.size();) {
    const auto length = static_cast<size_t>(load<uint64_t>(bytes.subspan(at)));
    all.emplace_back(text + at + 8, length);
    at += 8 + length;
  }
  return all;
}

std::vector<double> GgufValue::numbers() const {
  std::vector<double> all(static_cast<size_t>(count));
  for (size_t i = 0; i < all.size(); ++i) all[i] = number_at(element, bytes, i);
  return all;
}

int64_t GgufTensor::num_elements() const {
  int64_t count = 1;
  for (int64_t axis : shape) count *= axis;
  return count;
}

std::string_view GgufTensor::type_name() const {
  return format == base::WeightFormat::plain ? base::dtype_name(dtype) : base::name_of(format);
}

}  // namespace sinter::io

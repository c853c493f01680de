#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/atomic_file.h"
#include "base/error.h"
#include "io/safetensors.h"

namespace sinter::io {

using base::fail;

struct SafetensorsWriter::State {
  struct Tensor {
    std::string name;
    base::DType dtype;
    std::vector<int64_t> shape;
    uint64_t size_bytes = 0;
    uint64_t begin = 0;    // from the start of the file, known once the header is written
    uint64_t written = 0;  // bytes so far
  };

  explicit State(const std::string& target) : path(target), file(target) {}

  const std::string path;
  base::AtomicFile file;
  std::map<std::string, std::string> metadata;
  std::vector<Tensor> tensors;
  std::unordered_map<std::string, size_t> index;
  bool has_header = false;

  void write_header() {
    std::sort(tensors.begin(), tensors.end(), [](const Tensor& a, const Tensor& b) {
      size_t a_bytes = base::dtype_bytes(a.dtype), b_bytes = base::dtype_bytes(b.dtype);
      return a_bytes != b_bytes ? a_bytes > b_bytes : a.name < b.name;
    });
    std::string text = "{";
    uint64_t offset = 0;
    try {
      if (!metadata.empty()) text += "\"__metadata__\":" + nlohmann::json(metadata).dump();
      for (size_t i = 0; i < tensors.size(); ++i) {
        Tensor& t = tensors[i];
        index[t.name] = i;
        t.begin = offset;
        offset += t.size_bytes;
        if (text.size() > 1) text += ",";
        text +=
            fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}}", nlohmann::json(t.name).dump(),
                        base::dtype_safetensors_name(t.dtype), nlohmann::json(t.shape).dump(), t.begin, offset);
      }
    } catch (const nlohmann::json::exception& e) {
      fail("cannot write '{}': a tensor's name or the metadata is not valid UTF-8: {}", path, e.what());
    }
    text += "}";
    text.append((8 - text.size() % 8) % 8, ' ');  // data starts on 8 bytes
    uint64_t length = text.size();
    std::string head(reinterpret_cast<const char*>(&length), sizeof length);
    head += text;
    file.write_at(std::as_bytes(std::span(head)), 0);
    for (Tensor& t : tensors) t.begin += head.size();
    has_header = true;
  }
};

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::map<std::string, std::string> metadata)
    : state_(std::make_unique<State>(path)) {
  state_->metadata = std::move(metadata);
}

SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&&) noexcept = default;
SafetensorsWriter& SafetensorsWriter::operator=(SafetensorsWriter&&) noexcept = default;
SafetensorsWriter::~SafetensorsWriter() = default;

void SafetensorsWriter::declare(std::string name, base::DType dtype, std::vector<int64_t> shape) {
  SINTER_CHECK(!state_->has_header, "'{}': tensor '{}' is declared after the first write", state_->path, name);
  SINTER_CHECK(name != "__metadata__", "'{}': a tensor cannot be named '__metadata__'", state_->path);
  uint64_t size_bytes = base::dtype_bytes(dtype);
  for (int64_t axis : shape) {
    SINTER_CHECK(axis >= 0 && !__builtin_mul_overflow(size_bytes, static_cast<uint64_t>(axis), &size_bytes),
                 "'{}': tensor '{}' has the impossible shape {}", state_->path, name, shape_to_string(shape));
  }
  SINTER_CHECK(state_->index.emplace(name, state_->tensors.size()).second, "'{}': tensor '{}' is declared twice",
               state_->path, name);
  state_->tensors.push_back({std::move(name), dtype, std::move(shape), size_bytes});
}

void SafetensorsWriter::write(std::string_view name, std::span<const std::byte> bytes) {
  if (!state_->has_header) state_->write_header();
  auto found = state_->index.find(std::string(name));
  SINTER_CHECK(found != state_->index.end(), "'{}': tensor '{}' was not declared", state_->path, name);
  State::Tensor& tensor = state_->tensors[found->second];
  SINTER_CHECK(bytes.size() <= tensor.size_bytes - tensor.written,
               "'{}': tensor '{}' takes {} bytes; {} were written already and {} more given", state_->path, name,
               tensor.size_bytes, tensor.written, bytes.size());
  state_->file.write_at(bytes, tensor.begin + tensor.written);
  tensor.written += bytes.size();
}

void SafetensorsWriter::commit() {
  State& s = *state_;
  SINTER_CHECK(!s.file.is_committed(), "'{}' is already committed", s.path);
  if (!s.has_header) s.write_header();
  for (const State::Tensor& t : s.tensors) {
    SINTER_CHECK(t.written == t.size_bytes, "'{}': tensor '{}' has {} of its {} bytes", s.path, t.name, t.written,
                 t.size_bytes);
  }
  s.file.commit();
}

}  // namespace sinter::io

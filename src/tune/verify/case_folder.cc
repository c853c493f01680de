#include "tune/verify/case_folder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "io/safetensors.h"

namespace sinter::tune {

namespace fs = std::filesystem;
using base::DType;

namespace {

template <class T>
void widen(const io::TensorEntry& entry, std::vector<double>& out) {
  for (size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, entry.bytes.data() + i * sizeof(T), sizeof(T));
    out[i] = static_cast<double>(value);
  }
}

Numbers numbers_of(const io::TensorEntry& entry) {
  Numbers out;
  out.shape.assign(entry.shape.begin(), entry.shape.end());
  out.values.resize(static_cast<size_t>(entry.num_elements()));
  if (entry.dtype == DType::i64) {
    widen<int64_t>(entry, out.values);
  } else if (entry.dtype == DType::i32) {
    widen<int32_t>(entry, out.values);
  } else if (entry.bytes.size() == out.values.size()) {  // u8, bool
    widen<uint8_t>(entry, out.values);
  } else {
    std::vector<float> values(out.values.size());
    base::convert_elements(entry.dtype, entry.bytes.data(), DType::f32, values.data(), values.size());
    out.values.assign(values.begin(), values.end());
  }
  return out;
}

}  // namespace

Tensors read_tensors(const std::string& path) {
  const io::SafetensorsFile file(path);
  Tensors out;
  for (const io::TensorEntry& entry : file.entries()) out[entry.name] = numbers_of(entry);
  return out;
}

const Numbers& get(const Tensors& tensors, const std::string& name) {
  const auto found = tensors.find(name);
  SINTER_CHECK(found != tensors.end(), "the tensor '{}' is missing", name);
  return found->second;
}

nlohmann::ordered_json read_case(const std::string& folder) {
  const std::string path = folder + "/case.json";
  const auto value = nlohmann::ordered_json::parse(base::read_file(path), nullptr, false);
  SINTER_CHECK(!value.is_discarded(), "'{}' is not JSON", path);
  return value;
}

std::string path_of(const std::string& folder, const nlohmann::ordered_json& name) {
  SINTER_CHECK(name.is_string(), "'{}': a path is {}, expected a text", folder, name.type_name());
  return (fs::path(folder) / name.get<std::string>()).lexically_normal().string();
}

std::string tokenizer_folder(const std::string& folder, const nlohmann::ordered_json& name) {
  const std::string path = path_of(folder, name);
  if (fs::exists(path)) return path;
  const fs::path last = fs::path(path).filename();
  for (fs::path above = fs::absolute(folder); above.has_relative_path(); above = above.parent_path()) {
    if (fs::path found = above / "data" / "tokenizers" / last; fs::exists(found)) return found.string();
  }
  return path;
}

eval::VerifyCheck compare(std::string name, std::span<const double> found, std::span<const double> expected,
                          double limit, double floor) {
  eval::VerifyCheck check{std::move(name), "largest difference", 0, limit, {}};
  if (found.size() != expected.size()) {
    check.error = std::nan("");
    check.note = fmt::format("{} values, expected {}", found.size(), expected.size());
    return check;
  }
  double top = floor;
  for (double value : expected) top = std::max(top, std::abs(value));
  for (size_t i = 0; i < found.size(); ++i) {
    const double error = std::abs(found[i] - expected[i]) / top;
    if (!(error <= check.error)) {
      check.error = error;
      if (error > limit || std::isnan(error))
        check.note = fmt::format("value {}: {:.7g}, expected {:.7g}", i, found[i], expected[i]);
    }
    if (std::isnan(error)) break;
  }
  return check;
}

eval::VerifyCheck compare(std::string name, double found, double expected, double limit, double floor) {
  return compare(std::move(name), std::span(&found, 1), std::span(&expected, 1), limit, floor);
}

}  // namespace sinter::tune

#include "quant/verify/block_encoders.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/blocks.h"
#include "base/error.h"
#include "base/json.h"
#include "io/safetensors.h"
#include "quant/encode.h"

namespace sinter::quant {
namespace {

using base::WeightFormat;

constexpr double kRmseLimit = 0.02;  // above ggml's

bool has_defined_rounding(WeightFormat format) {
  switch (format) {
    case WeightFormat::q8_0:
    case WeightFormat::q4_0:
    case WeightFormat::q4_1:
    case WeightFormat::q5_0:
    case WeightFormat::q5_1:
    case WeightFormat::mxfp4:
      return true;
    default:
      return false;
  }
}

const io::TensorEntry& tensor_of(const io::SafetensorsFile& file, const std::string& name, base::DType dtype) {
  const io::TensorEntry* entry = file.find(name);
  SINTER_CHECK(entry && entry->dtype == dtype, "'{}': tensor '{}' is missing or not {}", file.path(), name,
               base::dtype_name(dtype));
  return *entry;
}

const float* floats(const io::TensorEntry& entry) { return reinterpret_cast<const float*>(entry.bytes.data()); }

double rmse(const float* a, const float* b, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
  return std::sqrt(sum / static_cast<double>(count));
}

// The names of the rows of `x`, from the file or from blocks.json beside it.
std::vector<std::string> row_names(const io::SafetensorsFile& file) {
  if (auto found = file.metadata().find("rows"); found != file.metadata().end())
    return nlohmann::json::parse(found->second).get<std::vector<std::string>>();
  const std::string beside = std::filesystem::path(file.path()).replace_extension(".json").string();
  return base::load_json(beside).at("rows").get<std::vector<std::string>>();
}

struct Rows {
  const io::TensorEntry& x;
  int64_t count, columns;
  std::vector<std::string> names;
};

void verify_format(const io::SafetensorsFile& file, const Rows& rows, WeightFormat format, const std::string& type,
                   std::vector<EncoderCheck>& checks) {
  const io::TensorEntry &bytes = tensor_of(file, type + ".q", base::DType::u8),
                        &numbers = tensor_of(file, type + ".dequant", base::DType::f32);
  SINTER_CHECK(rows.columns % base::info_of(format).block_elements == 0, "'{}': rows of {} are not whole blocks of {}",
               file.path(), rows.columns, type);
  const int64_t row_bytes = base::bytes_of(format, rows.columns);
  SINTER_CHECK(bytes.num_elements() == rows.count * row_bytes && numbers.shape == rows.x.shape,
               "'{}': '{}' is {} and '{}' is {}; they do not fit 'x', {}", file.path(), bytes.name,
               io::shape_to_string(bytes.shape), numbers.name, io::shape_to_string(numbers.shape),
               io::shape_to_string(rows.x.shape));
  std::vector<uint8_t> coded(static_cast<size_t>(row_bytes));
  std::vector<float> back(static_cast<size_t>(rows.columns));
  const std::string title = "blocks " + type;
  double differing = 0;
  for (int64_t r = 0; r < rows.count; ++r) {
    const float *x = floats(rows.x) + r * rows.columns, *answer = floats(numbers) + r * rows.columns;
    encode_row(format, x, nullptr, rows.columns, coded.data());
    const auto* expected = reinterpret_cast<const uint8_t*>(bytes.bytes.data()) + r * row_bytes;
    for (size_t i = 0; i < coded.size(); ++i) differing += coded[i] != expected[i];
    const std::string& row = rows.names[static_cast<size_t>(r)];
    const bool is_ordinary = row == "normal" || row == "weights" || row == "uniform" || row == "heavy_tail";
    if (has_defined_rounding(format) || !is_ordinary) continue;
    base::dequantize_blocks(format, coded.data(), nullptr, back.data(), rows.columns);
    const double theirs = rmse(x, answer, rows.columns), ours = rmse(x, back.data(), rows.columns);
    checks.push_back({fmt::format("{}: RMSE of row {}", title, row), "above ggml's",
                      theirs > 0 ? ours / theirs - 1 : ours, kRmseLimit});
  }
  if (!has_defined_rounding(format)) return;
  checks.push_back({title + ": bytes", fmt::format("differing of {}", bytes.bytes.size()), differing, 0});
}

}  // namespace

std::vector<EncoderCheck> verify_block_encoders(const std::string& path) {
  const io::SafetensorsFile file(path);
  const io::TensorEntry& x = tensor_of(file, "x", base::DType::f32);
  SINTER_CHECK(x.shape.size() == 2, "'{}': 'x' is {}; expected rows and columns", path, io::shape_to_string(x.shape));
  const Rows rows{x, x.shape[0], x.shape[1], row_names(file)};
  SINTER_CHECK(static_cast<int64_t>(rows.names.size()) == rows.count, "'{}': {} rows have {} names", path, rows.count,
               rows.names.size());
  std::vector<EncoderCheck> checks;
  for (const base::WeightFormatInfo& info : base::weight_formats()) {
    std::string type(info.name);
    for (char& c : type) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    if (can_encode(info.format) && file.find(type + ".q")) verify_format(file, rows, info.format, type, checks);
  }
  return checks;
}

}  // namespace sinter::quant

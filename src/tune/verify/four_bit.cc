// 4-bit blocks, their scales and the 8-bit code against bitsandbytes.
#include "tune/adapter/four_bit.h"

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "train/dynamic_map.h"
#include "tune/verify/case_folder.h"

namespace sinter::tune {
namespace {

using base::WeightFormat;

std::vector<float> floats(const Numbers& numbers) { return {numbers.values.begin(), numbers.values.end()}; }

double differing(const std::vector<uint8_t>& found, const Numbers& expected) {
  if (found.size() != expected.values.size()) return std::nan("");
  double count = 0;
  for (size_t i = 0; i < found.size(); ++i) count += found[i] == static_cast<uint8_t>(expected.values[i]) ? 0 : 1;
  return count;
}

// FP4 has two zeros, which the library's backends write differently.
uint8_t with_one_zero(uint8_t pair) {
  const int high = pair >> 4 == 8 ? 0 : pair >> 4, low = (pair & 15) == 8 ? 0 : pair & 15;
  return static_cast<uint8_t>(high << 4 | low);
}

class TensorsCase {
 public:
  explicit TensorsCase(const std::string& folder)
      : tensors_(read_tensors(folder + "/tensors.safetensors")),
        index_(nlohmann::ordered_json::parse(base::read_file(folder + "/index.json"))) {}

  Checks run() {
    Checks checks;
    for (const auto& [name, own] :
         {std::pair{"code.nf4", four_bit_book(WeightFormat::nf4)}, {"code.fp4", four_bit_book(WeightFormat::fp4)}})
      checks.push_back(compare(name, std::vector<double>(own.begin(), own.end()), get(tensors_, name).values, 0));
    for (const bool is_signed : {true, false}) {
      const std::vector<float> own = train::dynamic_map(is_signed);
      const std::string name = is_signed ? "code.dynamic_signed" : "code.dynamic_unsigned";
      checks.push_back(compare(name, std::vector<double>(own.begin(), own.end()), get(tensors_, name).values, 0));
    }
    for (const auto& entry : index_) check_entry(entry);
    for (const auto& [name, numbers] : tensors_) {
      if (name.starts_with("blockwise8.") && name.ends_with(".q")) check_bytes(name.substr(0, name.size() - 2));
    }
    checks.push_back({"packed codes", "bytes differing", packed_, 0, {}});
    checks.push_back({"scales of blocks", "numbers differing", scales_, 0, {}});
    checks.push_back({"scales in 8 bits", "codes differing", nested_, 0, {}});
    checks.push_back({"their offsets and scales", "largest difference", offsets_, 1e-6, {}});
    checks.push_back({"dequantized values", "numbers differing", values_, 0, {}});
    checks.push_back({"8-bit codes", "codes differing", bytes_, 0, {}});
    checks.push_back({"8-bit scales", "numbers differing", byte_scales_, 0, {}});
    return checks;
  }

 private:
  void check_entry(const nlohmann::ordered_json& entry) {
    const auto key = entry.at("key").get<std::string>();
    const std::vector<float> x = floats(get(tensors_, entry.at("input").get<std::string>()));
    const auto format = entry.at("quant_type") == "nf4" ? WeightFormat::nf4 : WeightFormat::fp4;
    const auto block = entry.at("blocksize").get<int64_t>();
    const std::vector<float> book = four_bit_book(format);
    const NearestCode nearest(book);
    const BlockCodes own = quantize_in_blocks(x, block, nearest);
    std::vector<uint8_t> packed = pack_pairs(own.codes, nearest(0));
    Numbers expected = get(tensors_, key + ".packed");
    for (uint8_t& pair : packed) pair = format == WeightFormat::fp4 ? with_one_zero(pair) : pair;
    for (double& pair : expected.values)
      pair = format == WeightFormat::fp4 ? with_one_zero(static_cast<uint8_t>(pair)) : pair;
    packed_ += differing(packed, expected);
    std::vector<float> scales = own.scales;
    const Numbers& absmax = get(tensors_, key + ".absmax");
    if (entry.at("double_quant").get<bool>()) {
      scales = check_nested(key, own.scales, absmax);
    } else {
      for (size_t i = 0; i < scales.size(); ++i) scales_ += scales[i] == static_cast<float>(absmax.values[i]) ? 0 : 1;
    }
    // By the library's own codes and scales, so that only decoding is held.
    const std::vector<double>& pairs = get(tensors_, key + ".packed").values;
    const std::vector<double>& given = get(tensors_, key + ".dequantized").values;
    const auto dtype = base::parse_dtype(entry.at("dtype").get<std::string>());
    for (size_t i = 0; i < x.size(); ++i) {
      const int code = static_cast<int>(pairs[i / 2]) >> (i % 2 ? 0 : 4) & 15;
      float value = book[static_cast<size_t>(code)] * scales[i / static_cast<size_t>(block)], rounded = 0;
      std::byte bytes[4];
      base::convert_elements(base::DType::f32, &value, dtype, bytes, 1);
      base::convert_elements(dtype, bytes, base::DType::f32, &rounded, 1);
      values_ += rounded == static_cast<float>(given[i]) ? 0 : 1;
    }
  }

  // Codes by the library's own offset: a mean's last bit depends on the order of its sum.
  std::vector<float> check_nested(const std::string& key, const std::vector<float>& scales, const Numbers& codes) {
    NestedScales own = nest_scales(scales);
    const float offset = floats(get(tensors_, key + ".nested_offset"))[0];
    const std::vector<float> largest = floats(get(tensors_, key + ".nested_absmax"));
    offsets_ =
        std::max(offsets_, static_cast<double>(std::abs(own.offset - offset)) / std::max(1.0f, std::abs(offset)));
    std::vector<float> rest;
    for (float scale : scales) rest.push_back(scale - offset);
    own.offset = offset;
    own.blocks = quantize_in_blocks(rest, 256, NearestCode(train::dynamic_map(true)));
    bool has_codes = true;  // where all blocks have one scale the codes mean nothing
    for (size_t i = 0; i < largest.size(); ++i) {
      offsets_ = std::max(offsets_, static_cast<double>(std::abs(own.blocks.scales[i] - largest[i])));
      has_codes = has_codes && largest[i] > 0;
    }
    if (has_codes) nested_ += differing(own.blocks.codes, codes);
    for (size_t i = 0; i < codes.values.size(); ++i) own.blocks.codes[i] = static_cast<uint8_t>(codes.values[i]);
    own.blocks.scales = largest;
    return own.scales();
  }

  void check_bytes(const std::string& key) {
    const auto block = std::stoll(key.substr(key.rfind(".b") + 2));
    const BlockCodes own =
        quantize_in_blocks(floats(get(tensors_, key + ".input")), block, NearestCode(train::dynamic_map(true)));
    bytes_ += differing(own.codes, get(tensors_, key + ".q"));
    const std::vector<float> scales = floats(get(tensors_, key + ".absmax"));
    for (size_t i = 0; i < scales.size(); ++i) byte_scales_ += scales[i] == own.scales[i] ? 0 : 1;
  }

  const Tensors tensors_;
  const nlohmann::ordered_json index_;
  double packed_ = 0, scales_ = 0, nested_ = 0, offsets_ = 0, values_ = 0, bytes_ = 0, byte_scales_ = 0;
};

}  // namespace

Checks verify_four_bit(const std::string& folder, const eval::VerifyOptions&) { return TensorsCase(folder).run(); }

}  // namespace sinter::tune

// Packed words of quantized folders by themselves: integers (GPTQ, AWQ, compressed-tensors) and 4-bit floats.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "eval/quantized/golden_tensors.h"
#include "eval/quantized/quantized_golden.h"
#include "kernels/weight_rows.h"
#include "models/quantized/unpack.h"

namespace sinter::eval {
namespace {

using models::quantized::PackedTensors;
using models::quantized::Size;

// The scale of a whole tensor is applied as one factor here, where the library divides in f64: two roundings more.
constexpr double kTensorScaleTolerance = 2e-7;

std::vector<float> numbers_of(const core::WeightPart& part, Size size) {
  auto blocks = std::make_shared<core::WeightBlocks>();
  blocks->rows = size.rows;
  blocks->columns = size.columns;
  blocks->parts.push_back(part);
  core::WeightView view;
  view.blocks = blocks;
  std::vector<float> values(static_cast<size_t>(size.rows * size.columns));
  for (int64_t r = 0; r < size.rows; ++r) kernels::read_weight_row(view, 0, r, values.data() + r * size.columns);
  return values;
}

// Rows and columns of an answer; leading axes are rows.
Size size_of(const io::TensorEntry& answer) {
  SINTER_CHECK(answer.shape.size() >= 2 && answer.num_elements() > 0, "tensor '{}' is {}; expected rows and columns",
               answer.name, io::shape_to_string(answer.shape));
  const int64_t columns = answer.shape.back();
  return {answer.num_elements() / columns, columns};
}

// Columns of a group, from the axis of the scales that counts groups.
int64_t group_of(const io::TensorEntry& scales, size_t axis, int64_t columns) {
  SINTER_CHECK(scales.shape.size() == 2 && scales.shape[axis] > 0 && columns % scales.shape[axis] == 0,
               "tensor '{}' is {}; {} columns are not whole groups", scales.name, io::shape_to_string(scales.shape),
               columns);
  return columns / scales.shape[axis];
}

// The bits in "gptq4_act" or "pack_quantized8"; 0: the name is of another form.
int bits_of(const std::string& name, const std::string& prefix) {
  if (!name.starts_with(prefix) || name.size() == prefix.size()) return 0;
  const char digit = name[prefix.size()];
  const bool ends = name.size() == prefix.size() + 1 || name[prefix.size() + 1] == '_';
  return ends && digit >= '2' && digit <= '8' ? digit - '0' : 0;
}

void verify_words(const io::SafetensorsFile& file, const std::string& name, const std::string& title,
                  std::vector<VerifyCheck>& checks) {
  const io::TensorEntry& answer = tensor_of(file, name + ".dequant");
  const Size size = size_of(answer);
  PackedTensors t;
  t.name = name;
  auto add = [&](const std::string& what, const core::WeightPart& part) {
    checks.push_back(count_differing(what, numbers_of(part, size), answer));
  };
  if (const int bits = bits_of(name, "pack_quantized")) {
    t.codes = &tensor_of(file, name + ".weight_packed");
    t.scales = &tensor_of(file, name + ".weight_scale");
    return add(title, models::quantized::unpack_packed_integers(t, size, bits, group_of(*t.scales, 1, size.columns)));
  }
  const int bits = bits_of(name, "gptq");
  if (!bits && !name.starts_with("awq")) {
    return checks.push_back(skipped(title, "the program knows no packing of this name"));
  }
  t.codes = &tensor_of(file, name + ".qweight");
  t.scales = &tensor_of(file, name + ".scales");
  const int64_t group = group_of(*t.scales, 0, size.columns);
  if (!bits) {
    t.zeros = &tensor_of(file, name + ".qzeros");
    return add(title, models::quantized::unpack_awq(t, size, group));
  }
  t.groups = file.find(name + ".g_idx");
  for (const int version : {1, 2}) {
    t.zeros = &tensor_of(file, fmt::format("{}.qzeros_v{}", name, version));
    add(fmt::format("{}, v{}", title, version), models::quantized::unpack_gptq(t, size, bits, group, version));
  }
}

// The same bytes as a matrix: gpt-oss stores (experts, rows, groups, 16).
io::TensorEntry as_rows(const io::TensorEntry& entry, int64_t rows) {
  io::TensorEntry matrix = entry;
  SINTER_CHECK(rows > 0 && entry.num_elements() % rows == 0, "tensor '{}' is {}; expected {} rows", entry.name,
               io::shape_to_string(entry.shape), rows);
  matrix.shape = {rows, entry.num_elements() / rows};
  return matrix;
}

// As numbers: a code of minus zero is read as zero, as ggml does.
void verify_floats(const io::SafetensorsFile& file, const std::string& name, const std::string& title,
                   std::vector<VerifyCheck>& checks) {
  const io::TensorEntry& answer = tensor_of(file, name + ".dequant");
  const Size size = size_of(answer);
  auto first_of = [&](std::initializer_list<const char*> endings) -> const io::TensorEntry& {
    for (const char* ending : endings) {
      if (const io::TensorEntry* entry = file.find(name + ending)) return *entry;
    }
    return tensor_of(file, name + *endings.begin());
  };
  const bool is_mx = name == "gpt_oss" || name.find("mxfp4") != std::string::npos;
  if (!is_mx && name.find("nvfp4") == std::string::npos) {
    return checks.push_back(skipped(title, "the program knows no 4-bit float of this name"));
  }
  const io::TensorEntry codes = as_rows(first_of({".weight_packed", ".qdata", ".blocks"}), size.rows),
                        scales = as_rows(first_of({".weight_scale", ".scale", ".scales"}), size.rows);
  PackedTensors t;
  t.name = name;
  t.codes = &codes;
  t.scales = &scales;
  if (is_mx) {
    const core::WeightPart part = models::quantized::unpack_mxfp4(t, size);
    return checks.push_back(count_unequal(title, numbers_of(part, size), answer, 0));
  }
  struct TensorScale {
    std::string ending, label;
    bool divides;
  };
  bool has_scale = false;
  for (const TensorScale& form : {TensorScale{".weight_global_scale", "", true},
                                  TensorScale{".modelopt_weight_scale_2", ", ModelOpt's scale", false}}) {
    t.global_scale = file.find(name + form.ending);
    if (!t.global_scale) continue;
    has_scale = true;
    const core::WeightPart part = models::quantized::unpack_nvfp4(t, size, form.divides);
    checks.push_back(count_unequal(title + form.label, numbers_of(part, size), answer, kTensorScaleTolerance));
  }
  if (has_scale) return;
  t.global_scale = nullptr;
  const core::WeightPart part = models::quantized::unpack_nvfp4(t, size, false);
  checks.push_back(count_unequal(title, numbers_of(part, size), answer, 0));
}

using Verify = void (*)(const io::SafetensorsFile&, const std::string&, const std::string&, std::vector<VerifyCheck>&);

void verify_each(const std::string& path, const std::string& label, Verify verify, std::vector<VerifyCheck>& checks) {
  const io::SafetensorsFile file(path);
  const std::string ending = ".dequant";
  std::vector<std::string> names;
  for (const io::TensorEntry& entry : file.entries()) {
    if (entry.name.ends_with(ending)) names.push_back(entry.name.substr(0, entry.name.size() - ending.size()));
  }
  SINTER_CHECK(!names.empty(), "'{}' has no tensor 'NAME{}'", path, ending);
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    const std::string title = fmt::format("{} {}", label, name);
    attempt(title, checks, [&] { verify(file, name, title, checks); });
  }
}

}  // namespace

void verify_packed_words(const std::string& file, std::vector<VerifyCheck>& checks) {
  verify_each(file, "packing", verify_words, checks);
}

void verify_four_bit_floats(const std::string& file, std::vector<VerifyCheck>& checks) {
  verify_each(file, "fp4", verify_floats, checks);
}

}  // namespace sinter::eval

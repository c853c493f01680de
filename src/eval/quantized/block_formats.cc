// GGUF's block formats by themselves: numbers from blocks, and products with them.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/blocks.h"
#include "base/error.h"
#include "eval/quantized/golden_tensors.h"
#include "eval/quantized/quantized_golden.h"
#include "kernels/choices.h"
#include "kernels/table.h"

namespace sinter::eval {
namespace {

// Of |row| * |activation|: kernels on f32 activations, and on 8-bit ones.
constexpr double kDotLimit = 1e-6, kRoundedDotLimit = 1e-3;

struct BlockType {
  std::string name;                                // "Q4_K"
  const base::WeightFormatInfo* format = nullptr;  // null: plain
  base::DType plain = base::DType::f32;
};

// False for a type that has no reader here.
bool find_type(const std::string& name, BlockType& type) {
  type.name = name;
  if (name == "F16" || name == "BF16") {
    type.plain = name == "F16" ? base::DType::f16 : base::DType::bf16;
    return true;
  }
  type.format = base::find_weight_format(lower_case(name));
  return type.format && type.format->can_decode;
}

std::vector<float> decode(const BlockType& type, const io::TensorEntry& blocks, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  const int64_t bytes = type.format ? base::bytes_of(type.format->format, count) : 2 * count;
  SINTER_CHECK(static_cast<int64_t>(blocks.bytes.size()) == bytes, "tensor '{}' has {} bytes; {} numbers of {} take {}",
               blocks.name, blocks.bytes.size(), count, type.name, bytes);
  if (type.format) {
    base::dequantize_blocks(type.format->format, blocks.bytes.data(), nullptr, values.data(), count);
  } else {
    base::convert_elements(type.plain, blocks.bytes.data(), base::DType::f32, values.data(), values.size());
  }
  return values;
}

// Products of every row with the activation, by the kernels.
std::vector<float> products_of(const BlockType& type, const io::TensorEntry& blocks, const std::vector<float>& rows,
                               const std::vector<float>& activation, core::Device where) {
  core::DeviceRuntime& device = core::runtime(where);
  core::Allocator& memory = device.allocator();
  const auto K = static_cast<int64_t>(activation.size()), N = static_cast<int64_t>(rows.size()) / K;
  core::WeightView weight;
  if (type.format) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(blocks.bytes.data());
    const std::vector<uint8_t> copy(bytes, bytes + blocks.bytes.size());
    const auto size = static_cast<int64_t>(copy.size());
    auto stored = std::make_shared<core::WeightBlocks>();
    core::WeightPart part;
    part.format = type.format->format;
    part.data = core::make_tensor<uint8_t>(memory, {1, size}, copy);
    part.rows = N;
    stored->rows = N;
    stored->columns = K;
    stored->parts.push_back(part);
    weight.blocks = stored;
  } else {
    weight.data = core::make_tensor<float>(memory, {N, K}, rows);
  }
  kernels::MatmulArgs args;
  args.a = core::make_tensor<float>(memory, {1, K}, activation);
  args.b = weight;
  args.c = core::Tensor(memory, {1, N}, base::DType::f32);
  args.transpose_b = true;
  kernels::kernels_for(where).matmul(device.stream(), args);
  return core::to_host_floats(args.c);
}

double norm(const float* x, size_t count) {
  double sum = 0;
  for (size_t i = 0; i < count; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return std::sqrt(sum);
}

// The largest difference in units of |row| * |activation|.
double dot_error(const std::vector<float>& found, const io::TensorEntry& exact, const std::vector<float>& rows,
                 const std::vector<float>& activation) {
  SINTER_CHECK(exact.dtype == base::DType::f64 && exact.num_elements() == static_cast<int64_t>(found.size()),
               "tensor '{}' is {} {}; expected f64 ({})", exact.name, base::dtype_name(exact.dtype),
               io::shape_to_string(exact.shape), found.size());
  const size_t K = activation.size();
  std::vector<double> answers(found.size());
  std::memcpy(answers.data(), exact.bytes.data(), exact.bytes.size());
  const double length = norm(activation.data(), K);
  double worst = 0;
  for (size_t r = 0; r < found.size(); ++r) {
    const double scale = norm(rows.data() + r * K, K) * length;
    const double error = std::abs(static_cast<double>(found[r]) - answers[r]) / (scale > 0 ? scale : 1);
    worst = error <= worst ? worst : error;  // keeps NaN
  }
  return worst;
}

void verify_type(const io::SafetensorsFile& golden, const std::string& name, const std::string& title,
                 const VerifyOptions& options, std::vector<VerifyCheck>& checks) {
  BlockType type;
  if (!find_type(name, type)) return checks.push_back(skipped(title, "the program does not read this format"));
  const io::TensorEntry &blocks = tensor_of(golden, name + ".q"), &answer = tensor_of(golden, name + ".dequant");
  checks.push_back(count_differing(title + ": numbers", decode(type, blocks, answer.num_elements()), answer));
  if (const io::TensorEntry* raw = golden.find(name + ".raw")) {
    const io::TensorEntry& numbers = tensor_of(golden, name + ".raw_dequant");
    checks.push_back(
        count_differing(title + ": numbers of random bytes", decode(type, *raw, numbers.num_elements()), numbers));
  }
  const io::TensorEntry *exact = golden.find(name + ".dot_exact"), *activation = golden.find("activation");
  if (!exact || !activation) return;
  const std::vector<float> rows = floats_of(answer), x = floats_of(*activation);
  SINTER_CHECK(!x.empty() && rows.size() % x.size() == 0,
               "tensor '{}' has {} elements; not rows of {}, as 'activation'", answer.name, rows.size(), x.size());
  for (const bool rounds : {false, true}) {
    if (rounds && (!type.format || options.device.kind != core::DeviceKind::cpu)) continue;
    const kernels::IntegerProducts allowed(rounds);
    const std::vector<float> found = products_of(type, blocks, rows, x, options.device);
    checks.push_back({title + (rounds ? ": products, 8-bit activations" : ": products"), "of |row| |activation|",
                      dot_error(found, *exact, rows, x), rounds ? kRoundedDotLimit : kDotLimit, ""});
  }
}

}  // namespace

void verify_block_formats(const std::string& file, const VerifyOptions& options, std::vector<VerifyCheck>& checks) {
  const io::SafetensorsFile golden(file);
  std::vector<std::string> names;
  for (const io::TensorEntry& entry : golden.entries()) {
    if (entry.name.ends_with(".q")) names.push_back(entry.name.substr(0, entry.name.size() - 2));
  }
  SINTER_CHECK(!names.empty(), "'{}' has no tensor 'TYPE.q'", file);
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    const std::string title = "blocks " + name;
    attempt(title, checks, [&] { verify_type(golden, name, title, options, checks); });
  }
}

}  // namespace sinter::eval

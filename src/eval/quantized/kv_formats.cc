// Formats of the KV cache: what the cache keeps of keys and values, and attention over it.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "base/error.h"
#include "core/host_batch.h"
#include "core/kv_format.h"
#include "eval/quantized/golden_tensors.h"
#include "eval/quantized/quantized_golden.h"
#include "kernels/table.h"

namespace sinter::eval {
namespace {

constexpr double kOutputLimit = 1e-5;
constexpr int64_t kBlockSize = 16;

struct Format {
  std::string name;
  base::DType stored;
};
// Those that the cache can have (core/kv_format.h); fp8 with one scale for each head, all the same here.
const std::vector<Format>& known_formats() {
  static const std::vector<Format> formats = {{"exact", base::DType::f32},
                                              {"f16", base::DType::f16},
                                              {"bf16", base::DType::bf16},
                                              {"fp8_e4m3_tensor", base::DType::f8e4m3},
                                              {"fp8_e4m3_unit", base::DType::f8e4m3},
                                              {"fp8_e5m2_tensor", base::DType::f8e5m2},
                                              {"int8_f16scale", base::DType::i8},
                                              {"Q8_0", base::DType::u8}};
  return formats;
}

// One sequence: q (T, H, d), k and v (T, KV, d).
struct Sequence {
  int64_t tokens = 0, heads = 0, kv_heads = 0, dim = 0;
  std::vector<float> q, k, v;

  explicit Sequence(const io::SafetensorsFile& file) {
    const io::TensorEntry &queries = tensor_of(file, "q"), &keys = tensor_of(file, "k"), &values = tensor_of(file, "v");
    SINTER_CHECK(queries.shape.size() == 3 && keys.shape.size() == 3 && keys.shape == values.shape &&
                     queries.shape[0] == keys.shape[0] && queries.shape[2] == keys.shape[2] &&
                     keys.num_elements() > 0 && queries.shape[1] % keys.shape[1] == 0,
                 "'{}': q is {}, k {}, v {}; expected (T, H, d) and (T, KV, d) twice", file.path(),
                 io::shape_to_string(queries.shape), io::shape_to_string(keys.shape),
                 io::shape_to_string(values.shape));
    tokens = keys.shape[0], heads = queries.shape[1], kv_heads = keys.shape[1], dim = keys.shape[2];
    q = floats_of(queries), k = floats_of(keys), v = floats_of(values);
  }

  // Rows as the model's projection gives them: queries, keys, values.
  std::vector<float> packed_rows() const {
    std::vector<float> rows;
    auto append = [&](const std::vector<float>& x, int64_t t) {
      const auto width = static_cast<std::ptrdiff_t>(x.size()) / tokens;
      rows.insert(rows.end(), x.begin() + t * width, x.begin() + (t + 1) * width);
    };
    for (int64_t t = 0; t < tokens; ++t) append(q, t), append(k, t), append(v, t);
    return rows;
  }
};

struct CacheResult {
  std::vector<uint8_t> keys, values;  // as stored, (T, KV, d) elements
  std::vector<float> out;             // (T, H, d)
};

// The bytes of a sequence in blocks 0, 1, ... of a layer.
std::vector<uint8_t> stored_bytes(const core::KvCache& cache, const core::Tensor& first, const Sequence& s) {
  const std::vector<uint8_t> all = core::to_host<uint8_t>(cache.data());
  const core::KvLayer& layer = cache.layer(0);
  const auto width = static_cast<int64_t>(base::dtype_bytes(first.dtype()));
  const int64_t row = core::kv_row_elements(first.dtype(), s.dim) * width;
  const int64_t begin = static_cast<const std::byte*>(first.raw()) - static_cast<const std::byte*>(cache.data().raw());
  std::vector<uint8_t> bytes;
  for (int64_t t = 0; t < s.tokens; ++t) {
    for (int64_t h = 0; h < s.kv_heads; ++h) {
      const auto from = all.begin() + begin + layer.offset(t, h) * width;
      bytes.insert(bytes.end(), from, from + row);
    }
  }
  return bytes;
}

// Writes the sequence into a cache of the format and attends over it. Scales are for fp8.
CacheResult run(const Sequence& s, base::DType format, float key_scale, float value_scale, core::Device where) {
  core::DeviceRuntime& device = core::runtime(where);
  core::Allocator& memory = device.allocator();
  const kernels::KernelTable& table = kernels::kernels_for(where);
  const int64_t num_blocks = (s.tokens + kBlockSize - 1) / kBlockSize;
  core::KvCacheShape shape;
  shape.num_blocks = num_blocks;
  shape.block_size = kBlockSize;
  shape.num_kv_heads = s.kv_heads;
  shape.head_dim = s.dim;
  shape.formats = {format};
  core::KvCache cache(memory, shape);
  const auto kv_heads = static_cast<size_t>(s.kv_heads);
  if (base::is_fp8(format)) {
    cache.set_scales(0, std::vector<float>(kv_heads, key_scale), std::vector<float>(kv_heads, value_scale));
  }
  std::vector<int32_t> slots, blocks;
  for (int64_t t = 0; t < s.tokens; ++t) slots.push_back(static_cast<int32_t>(t));
  for (int64_t b = 0; b < num_blocks; ++b) blocks.push_back(static_cast<int32_t>(b));
  const core::Tensor qkv =
      core::make_tensor<float>(memory, {s.tokens, (s.heads + 2 * s.kv_heads) * s.dim}, s.packed_rows());
  kernels::KvWriteArgs write;
  write.num_heads = s.heads, write.num_kv_heads = s.kv_heads, write.head_dim = s.dim;
  write.qkv = qkv;
  write.slots = core::make_tensor<int32_t>(memory, {s.tokens}, slots);
  write.cache = cache.layer(0);
  table.kv_write(device.stream(), write);

  core::HostBatch host;
  host.add_sequence(slots);  // the tokens themselves are not read
  const core::RaggedBatch batch = core::upload(memory, host);
  kernels::AttentionForwardArgs args;
  args.shape.num_heads = s.heads, args.shape.num_kv_heads = s.kv_heads, args.shape.head_dim = s.dim;
  args.shape.scale = 1.0f / std::sqrt(static_cast<float>(s.dim));
  args.batch = &batch;
  args.qkv = qkv;
  args.cache = cache.layer(0);
  args.block_tables = core::make_tensor<int32_t>(memory, {1, num_blocks}, blocks);
  args.out = core::Tensor(memory, {s.tokens, s.heads * s.dim}, base::DType::f32);
  table.attention_forward(device.stream(), args);
  return {stored_bytes(cache, cache.layer(0).keys, s), stored_bytes(cache, cache.layer(0).values, s),
          core::to_host_floats(args.out)};
}

void count_differing_bytes(const std::string& title, const std::vector<uint8_t>& found, const io::TensorEntry& answer,
                           std::vector<VerifyCheck>& checks) {
  SINTER_CHECK(answer.bytes.size() == found.size(), "tensor '{}' has {} bytes; the cache holds {}", answer.name,
               answer.bytes.size(), found.size());
  int64_t differing = 0;
  for (size_t i = 0; i < found.size(); ++i) differing += found[i] != static_cast<uint8_t>(answer.bytes[i]);
  checks.push_back({title, fmt::format("differing of {}", found.size()), static_cast<double>(differing), 0, ""});
}

// One of the two halves: its codes, and the numbers they stand for where the file has them.
void compare_stored(const io::SafetensorsFile& file, const std::string& part, const Format& format, int64_t dim,
                    const std::vector<uint8_t>& found, float scale, const std::string& title,
                    std::vector<VerifyCheck>& checks) {
  const std::string label = title + (part == "k" ? ": keys" : ": values");
  const auto row = static_cast<size_t>(core::kv_row_elements(format.stored, dim)) * base::dtype_bytes(format.stored);
  if (const io::TensorEntry* codes = file.find(part + "codes." + format.name)) {
    std::vector<uint8_t> of_codes = found, of_scales;
    if (format.stored == base::DType::i8) {  // codes, then the scale
      of_codes.clear();
      for (size_t at = 0; at < found.size(); at += row) {
        const auto begin = found.begin() + static_cast<std::ptrdiff_t>(at);
        of_codes.insert(of_codes.end(), begin, begin + dim);
        of_scales.insert(of_scales.end(), begin + dim, begin + static_cast<std::ptrdiff_t>(row));
      }
      count_differing_bytes(label + ", scales", of_scales, tensor_of(file, part + "scale." + format.name), checks);
    }
    count_differing_bytes(label + ", codes", of_codes, *codes, checks);
  }
  const io::TensorEntry* numbers = file.find(part + "." + format.name);
  if (!numbers) return;
  std::vector<float> values(found.size() / row * static_cast<size_t>(dim));
  for (size_t r = 0; r < found.size() / row; ++r)
    core::decode_kv_row(format.stored, found.data() + r * row, dim, scale,
                        values.data() + r * static_cast<size_t>(dim));
  checks.push_back(count_differing(label, values, *numbers));
}

float scale_of(const io::SafetensorsFile& file, const std::string& name) {
  const io::TensorEntry* entry = file.find(name);
  if (!entry) return 1.0f;
  const std::vector<float> values = floats_of(*entry);
  SINTER_CHECK(values.size() == 1, "tensor '{}' has {} elements; expected one scale", name, values.size());
  return values[0];
}

void verify_format(const io::SafetensorsFile& file, const Sequence& s, const Format& format, const std::string& title,
                   core::Device device, std::vector<VerifyCheck>& checks) {
  const bool is_scaled = base::is_fp8(format.stored);
  const float key_scale = is_scaled ? scale_of(file, "kscale." + format.name) : 1.0f,
              value_scale = is_scaled ? scale_of(file, "vscale." + format.name) : 1.0f;
  const CacheResult found = run(s, format.stored, key_scale, value_scale, device);
  compare_stored(file, "k", format, s.dim, found.keys, key_scale, title, checks);
  compare_stored(file, "v", format, s.dim, found.values, value_scale, title, checks);
  const io::TensorEntry& answer = tensor_of(file, "out." + format.name);
  const std::vector<float> expected = floats_of(answer);
  SINTER_CHECK(expected.size() == found.out.size(), "tensor '{}' has {} elements; attention gives {}", answer.name,
               expected.size(), found.out.size());
  double worst = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double difference = std::abs(static_cast<double>(found.out[i]) - static_cast<double>(expected[i]));
    worst = difference <= worst ? worst : difference;  // keeps NaN
  }
  checks.push_back({title + ": attention", "largest difference", worst, kOutputLimit, ""});
}

}  // namespace

void verify_kv_formats(const std::string& path, const VerifyOptions& options, std::vector<VerifyCheck>& checks) {
  const io::SafetensorsFile file(path);
  const Sequence sequence(file);
  std::set<std::string> names;
  for (const io::TensorEntry& entry : file.entries()) {
    if (entry.name.starts_with("out.")) names.insert(entry.name.substr(4));
  }
  SINTER_CHECK(!names.empty(), "'{}' has no tensor 'out.TYPE'", path);
  for (const std::string& name : names) {
    const std::string title = "kv " + name;
    const auto& formats = known_formats();
    const auto format = std::find_if(formats.begin(), formats.end(), [&](const Format& f) { return f.name == name; });
    if (options.device.kind != core::DeviceKind::cpu) {
      checks.push_back(skipped(title, "compared on the CPU only"));
    } else if (format == formats.end()) {
      checks.push_back(skipped(title, "the KV cache has no such format"));
    } else {
      attempt(title, checks, [&] { verify_format(file, sequence, *format, title, options.device, checks); });
    }
  }
}

}  // namespace sinter::eval

#include "bench/random_weights.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "base/error.h"
#include "base/rng.h"
#include "kernels/table.h"

namespace sinter::bench {
namespace {

using base::WeightFormat;
using core::Tensor;

const core::Device kDevice{core::DeviceKind::cuda, 0};

bool is_of_blocks(const spec::ParameterSpec& info, const spec::ModelSpec& spec) {
  using Role = spec::ParameterRole;
  return info.layer >= 0 && info.layer < spec.num_layers &&
         (info.role == Role::matrix || info.role == Role::expert_matrix);
}

std::set<std::string> matrices_of(const spec::ModelSpec& spec) {
  std::set<std::string> names;
  for (const spec::ParameterSpec& info : spec::make_parameter_table(spec)) {
    if (is_of_blocks(info, spec)) names.insert(info.name);
  }
  return names;
}

// Copies a short stretch again and again until `to` is full.
void repeat(core::DeviceRuntime& device, const void* from, size_t bytes, const Tensor& to) {
  size_t done = std::min(bytes, to.bytes());
  device.copy_to_device(to.raw(), from, done, device.stream());
  while (done < to.bytes()) {
    const size_t piece = std::min(done, to.bytes() - done);
    device.copy_within(to.data<char>() + done, to.raw(), piece, device.stream());
    done += piece;
  }
}

// Random codes, the scales in them near 2^-7. Whole blocks, and no multiple of a row.
std::vector<uint8_t> random_codes(WeightFormat format) {
  const auto block = static_cast<size_t>(base::info_of(format).block_bytes);
  std::vector<uint8_t> codes(((size_t{1} << 20) / block - 17) * block);
  const base::CounterRng rng{12, 6};
  const uint32_t mask = format == WeightFormat::fp8_e4m3 ? 0xbf : 0xff;  // no NaN
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(rng.bits(i) & mask);
  if (base::info_of(format).scales == base::WeightScales::apart) return codes;
  const size_t scale_at = format == WeightFormat::q6_k ? 208 : 0;
  for (size_t b = 0; b < codes.size(); b += block) {
    if (format == WeightFormat::mxfp4) {
      codes[b] = 120;
      continue;
    }
    codes[b + scale_at + 1] = 0x20;
    if (format == WeightFormat::q4_k || format == WeightFormat::q5_k) codes[b + 3] = 0x20;
  }
  return codes;
}

int64_t group_of(const PackedFormat& format, int64_t columns) {
  if (format.group > 0) return format.group;
  return format.format == WeightFormat::fp8_e4m3 ? columns : base::info_of(format.format).block_elements;
}

}  // namespace

spec::ModelSpec shape_of(const std::string& name) {
  spec::ModelSpec s;
  s.vocab_size = 128256, s.hidden = 4096, s.num_layers = 32, s.num_heads = 32, s.num_kv_heads = 8, s.head_dim = 128;
  s.ffn = 14336, s.max_positions = 131072;
  s.rope.kind = spec::RopeKind::standard;
  s.rope.theta = 5e5;
  if (name == "8B") return s;
  if (name == "7B") {
    s.vocab_size = 32000, s.num_kv_heads = 32, s.ffn = 11008;
  } else if (name == "70B") {
    s.hidden = 8192, s.num_layers = 80, s.num_heads = 64, s.ffn = 28672;
  } else if (name == "16x1B") {
    s.hidden = 2048, s.num_layers = 16, s.num_heads = 16, s.num_kv_heads = 4, s.ffn = 4096;
    s.family = spec::Family::mixtral;
    s.moe.num_experts = 16, s.moe.experts_per_token = 2, s.moe.ffn = 4096;
    s.sparse_layers.assign(static_cast<size_t>(s.num_layers), 1);
  } else {
    SINTER_CHECK(name == "small", "no shape is called '{}'; expected 8B, 7B, 70B, 16x1B or small", name);
    s.vocab_size = 4096, s.hidden = 512, s.num_layers = 4, s.num_heads = 8, s.num_kv_heads = 2, s.head_dim = 64,
    s.ffn = 1536;
  }
  return s;
}

void fill_random(models::ParameterStore& store) {
  core::DeviceRuntime& device = core::runtime(store.options().device);
  constexpr size_t kNumbers = (size_t{1} << 20) - 17;  // no row is another's copy
  const base::CounterRng rng{11, 5};
  std::vector<float> numbers(kNumbers);
  for (size_t i = 0; i < kNumbers; ++i) numbers[i] = 0.04f * (rng.uniform(i) - 0.5f);
  const Tensor& all = store.compute();
  std::vector<std::byte> bytes(kNumbers * base::dtype_bytes(all.dtype()));
  base::convert_elements(core::DType::f32, numbers.data(), all.dtype(), bytes.data(), kNumbers);
  repeat(device, bytes.data(), bytes.size(), all);
  for (auto& slot : store.slots()) {
    if (slot.info.shape.rank() == 1 && slot.parameter.master)
      kernels::kernels_for(store.options().device).fill(device.stream(), {slot.parameter.master, 1.0f});
  }
  device.synchronize(device.stream());
}

int64_t use_packed(models::ParameterStore& store, const spec::ModelSpec& spec, const PackedFormat& format) {
  core::DeviceRuntime& device = core::runtime(store.options().device);
  const std::vector<uint8_t> codes = random_codes(format.format);
  const bool is_apart = base::info_of(format.format).scales == base::WeightScales::apart;
  int64_t elements = 0;
  for (auto& slot : store.slots()) {
    if (!is_of_blocks(slot.info, spec)) continue;
    const base::Shape& shape = slot.info.shape;
    const int64_t E = shape.rank() == 3 ? shape[0] : 1, rows = shape[-2], columns = shape[-1];
    const int64_t group = group_of(format, columns), groups = (columns + group - 1) / group;
    auto blocks = std::make_shared<core::WeightBlocks>();
    blocks->experts = E, blocks->rows = rows, blocks->columns = columns;
    core::WeightPart part{.format = format.format, .rows = rows, .group = is_apart ? group : 0};
    part.data = Tensor(device.allocator(), {E, rows * base::bytes_of(format.format, columns)}, core::DType::u8);
    repeat(device, codes.data(), codes.size(), part.data);
    if (is_apart) {
      part.scales = Tensor(device.allocator(), {E, rows, groups}, core::DType::f32);
      kernels::kernels_for(store.options().device).fill(device.stream(), {part.scales, 0.01f});
    }
    blocks->parts.push_back(part);
    store.set_blocks(slot, blocks);
    elements += E * rows * columns;
  }
  device.synchronize(device.stream());
  return elements;
}

double bits_per_element(const PackedFormat& format, int64_t columns) {
  const base::WeightFormatInfo& info = base::info_of(format.format);
  double bits = 8.0 * info.block_bytes / info.block_elements;
  if (info.scales == base::WeightScales::apart) bits += 32.0 / static_cast<double>(group_of(format, columns));
  return bits;
}

RandomModel::RandomModel(const std::string& name, const PackedFormat& format) : spec(shape_of(name)) {
  models::StoreOptions options{.device = kDevice, .compute = core::DType::bf16, .keeps_derived = true};
  const bool is_packed = format.format != WeightFormat::plain;
  if (is_packed) options.apart = matrices_of(spec);
  store = std::make_unique<models::ParameterStore>(spec, options);
  fill_random(*store);
  if (is_packed) {
    packed_elements_ = use_packed(*store, spec, format);
    for (const auto& slot : store->slots()) {
      if (!slot.is_apart) continue;
      packed_bytes_ +=
          static_cast<double>(slot.info.num_elements()) / 8 * bits_per_element(format, slot.info.shape[-1]);
    }
  }
  transformer = std::make_unique<models::Transformer>(spec, *store);
}

double RandomModel::weight_bytes() const {
  const double embedding = static_cast<double>(spec.vocab_size * spec.hidden);
  return 2.0 * (static_cast<double>(store->num_elements()) - embedding) + packed_bytes_;
}

double RandomModel::kv_bytes_per_token() const { return 4.0 * static_cast<double>(spec.num_layers * spec.kv_width()); }

double RandomModel::flops_per_token() const {
  const double ends = 2.0 * static_cast<double>(spec.vocab_size * spec.hidden);
  return 2.0 * (static_cast<double>(store->num_elements() + packed_elements_) - ends);
}

}  // namespace sinter::bench

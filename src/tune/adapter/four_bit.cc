#include "tune/adapter/four_bit.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/blocks.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/rng.h"
#include "base/threads.h"
#include "core/device.h"
#include "kernels/random.h"
#include "models/weights.h"
#include "train/dynamic_map.h"

namespace sinter::tune {
namespace {

using base::WeightFormat;

constexpr int64_t kBlock = 64, kNestedBlock = 256;

core::Tensor on_device(const core::Device& device, base::Shape shape, base::DType dtype, const void* bytes) {
  core::DeviceRuntime& runtime = core::runtime(device);
  core::Tensor tensor(runtime.allocator(), shape, dtype);
  runtime.copy_to_device(tensor.raw(), bytes, tensor.bytes(), runtime.stream());
  runtime.synchronize(runtime.stream());
  return tensor;
}

core::WeightPart four_bit_part(std::span<const float> values, int64_t rows, int64_t columns,
                               const core::Device& device) {
  const BlockCodes blocks = quantize_in_blocks(values, kBlock, NearestCode(four_bit_book(WeightFormat::nf4)));
  const std::vector<float> scales = nest_scales(blocks.scales).scales();
  // Blocks run over the flattened tensor; a group divides both them and the rows.
  const int64_t group = std::gcd(columns, kBlock), groups = columns / group;
  std::vector<float> by_group(static_cast<size_t>(rows * groups));
  for (size_t i = 0; i < by_group.size(); ++i)
    by_group[i] = scales[static_cast<size_t>(static_cast<int64_t>(i) * group / kBlock)];
  core::WeightPart part{.format = WeightFormat::nf4, .rows = rows, .group = group};
  const std::vector<uint8_t> packed = pack_pairs(blocks.codes, 0);
  part.data = on_device(device, {1, rows * columns / 2}, base::DType::u8, packed.data());
  part.scales = on_device(device, {1, rows, groups}, base::DType::f32, by_group.data());
  return part;
}

// `values_of(part)`: what a part of the weight holds.
template <class ValuesOf>
void set_four_bits(models::ParameterStore& store, models::ParameterStore::Slot& slot, ValuesOf values_of) {
  const spec::ParameterSpec& info = slot.info;
  const int64_t columns = info.shape[1];
  SINTER_CHECK(columns % 2 == 0, "'{}' has rows of {} numbers; 4 bits need an even number", info.name, columns);
  auto blocks = std::make_shared<core::WeightBlocks>();
  *blocks = {.rows = info.shape[0], .columns = columns};
  for (const spec::ParameterPart& part : info.parts)
    blocks->parts.push_back(four_bit_part(values_of(part), part.rows, columns, store.options().device));
  store.set_blocks(slot, std::move(blocks));
}

}  // namespace

NearestCode::NearestCode(std::span<const float> book) : order_(book.size()) {
  std::iota(order_.begin(), order_.end(), uint8_t{0});
  std::stable_sort(order_.begin(), order_.end(), [&](uint8_t a, uint8_t b) { return book[a] < book[b]; });
  for (size_t i = 0; i + 1 < order_.size(); ++i) midpoints_.push_back((book[order_[i]] + book[order_[i + 1]]) / 2);
}

uint8_t NearestCode::operator()(float value) const {
  return order_[static_cast<size_t>(std::lower_bound(midpoints_.begin(), midpoints_.end(), value) -
                                    midpoints_.begin())];
}

std::vector<float> four_bit_book(WeightFormat format) {
  std::vector<float> book;
  const float one = 1;
  for (int code = 0; code < 16; ++code) {
    const auto byte = static_cast<uint8_t>(code << 4);
    float values[2];
    base::dequantize_row(format, &byte, {.scales = &one, .group = 2}, values, 2);
    book.push_back(values[0]);
  }
  return book;
}

BlockCodes quantize_in_blocks(std::span<const float> values, int64_t block, const NearestCode& nearest) {
  const auto n = static_cast<int64_t>(values.size()), count = (n + block - 1) / block;
  BlockCodes out{std::vector<uint8_t>(values.size()), std::vector<float>(static_cast<size_t>(count))};
  base::parallel_for(count, 64, [&](int64_t first, int64_t last) {
    for (int64_t b = first; b < last; ++b) {
      const int64_t begin = b * block, end = std::min(n, begin + block);
      float largest = 0;
      for (int64_t i = begin; i < end; ++i) largest = std::max(largest, std::abs(values[static_cast<size_t>(i)]));
      out.scales[static_cast<size_t>(b)] = largest;
      const float divisor = std::max(largest, 1e-38f), factor = 1 / divisor;
      const bool is_whole = end - begin == block;  // whole blocks are multiplied, the last part of one is divided
      for (int64_t i = begin; i < end; ++i) {
        const float value = values[static_cast<size_t>(i)];
        out.codes[static_cast<size_t>(i)] = nearest(std::clamp(is_whole ? value * factor : value / divisor, -1.f, 1.f));
      }
    }
  });
  return out;
}

NestedScales nest_scales(std::span<const float> scales) {
  NestedScales out;
  double sum = 0;
  for (float scale : scales) sum += static_cast<double>(scale);
  out.offset = static_cast<float>(sum / static_cast<double>(std::max<size_t>(scales.size(), 1)));
  std::vector<float> rest;
  for (float scale : scales) rest.push_back(scale - out.offset);
  out.blocks = quantize_in_blocks(rest, kNestedBlock, NearestCode(train::dynamic_map(true)));
  return out;
}

std::vector<float> NestedScales::scales() const {
  const std::vector<float> map = train::dynamic_map(true);
  std::vector<float> out;
  for (size_t i = 0; i < blocks.codes.size(); ++i)
    out.push_back(map[blocks.codes[i]] * blocks.scales[i / kNestedBlock] + offset);
  return out;
}

std::vector<uint8_t> pack_pairs(std::span<const uint8_t> codes, uint8_t last) {
  std::vector<uint8_t> out((codes.size() + 1) / 2);
  for (size_t i = 0; i < out.size(); ++i) {
    const uint8_t low = 2 * i + 1 < codes.size() ? codes[2 * i + 1] : last;
    out[i] = static_cast<uint8_t>(codes[2 * i] << 4 | low);
  }
  return out;
}

std::set<std::string> four_bit_tensors(const spec::ModelSpec& model) {
  std::set<std::string> names;
  for (const spec::ParameterSpec& p : spec::make_parameter_table(model)) {
    if (p.role == spec::ParameterRole::matrix && p.shape.rank() == 2) names.insert(p.name);
  }
  return names;
}

void load_in_four_bits(models::ParameterStore& store, const spec::ModelSpec& model, const io::TensorFolder& folder) {
  std::set<std::string> used;
  for (models::ParameterStore::Slot& slot : store.slots()) {
    const spec::ParameterSpec& info = slot.info;
    if (info.role == spec::ParameterRole::adapter) continue;
    if (!slot.is_apart) {
      models::load_plain_slot(store, slot, folder, used);
      continue;
    }
    set_four_bits(store, slot, [&](const spec::ParameterPart& part) {
      used.insert(models::find_plain_part(part, folder).name);
      return models::read_plain_part(info, part, folder);
    });
  }
  models::mark_elsewhere(store, model, folder, used);
  models::check_all_used(folder, model, used);
}

void draw_in_four_bits(models::ParameterStore& store, uint64_t seed) {
  for (models::ParameterStore::Slot& slot : store.slots()) {
    const spec::ParameterSpec& info = slot.info;
    if (info.role == spec::ParameterRole::adapter) continue;
    if (!slot.is_apart) {
      store.draw(slot, seed);
      continue;
    }
    const base::CounterRng rng{seed, base::hash_text(info.name)};
    uint64_t drawn = 0;
    set_four_bits(store, slot, [&](const spec::ParameterPart& part) {
      std::vector<float> values(static_cast<size_t>(part.rows * info.shape[1]));
      base::parallel_for(static_cast<int64_t>(values.size()), 1 << 16, [&](int64_t begin, int64_t end) {
        kernels::draw_normal(rng, drawn + static_cast<uint64_t>(begin), info.init_std,
                             std::span(values).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
      });
      drawn += values.size();
      return values;
    });
  }
}

}  // namespace sinter::tune

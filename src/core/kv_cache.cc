#include "core/kv_cache.h"

#include "base/error.h"
#include "core/kv_format.h"

namespace sinter::core {
namespace {

constexpr int64_t kAlignBytes = 256;

int64_t place_bytes(const KvCacheShape& s, DType format) {
  const int64_t row = kv_row_elements(format, s.head_dim) * static_cast<int64_t>(base::dtype_bytes(format));
  const int64_t bytes = 2 * s.num_kv_heads * s.block_size * row;
  return (bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes;
}

}  // namespace

KvLayer kv_layer_of(const Tensor& keys, const Tensor& values) {
  const int64_t B = keys.size(1), K = keys.size(2), D = keys.size(3);
  return {.keys = keys,
          .values = values,
          .block_size = B,
          .block_stride = B * K * D,
          .head_stride = D,
          .token_stride = K * D,
          .key_scales = {},
          .value_scales = {}};
}

int64_t KvCacheShape::block_bytes() const {
  int64_t bytes = 0;
  for (DType format : formats) bytes += place_bytes(*this, format);
  return bytes;
}

KvCache::KvCache(Allocator& allocator, const KvCacheShape& shape, float scale)
    : shape_(shape), data_(allocator, {shape.num_blocks, shape.block_bytes()}, DType::u8) {
  const int64_t K = shape.num_kv_heads, B = shape.block_size;
  const auto places = static_cast<int64_t>(shape.formats.size());
  bool has_scales = false;
  for (DType format : shape.formats) has_scales |= base::is_fp8(format);
  if (has_scales) {
    scales_ = make_tensor(allocator, {places * 2, K}, std::vector<float>(static_cast<size_t>(places * 2 * K), scale));
  }
  int64_t at = 0;
  for (int64_t p = 0; p < places; ++p) {
    const DType format = shape.formats[static_cast<size_t>(p)];
    const auto element = static_cast<int64_t>(base::dtype_bytes(format));
    const int64_t D = kv_row_elements(format, shape.head_dim);
    auto view = [&](int64_t first) {
      return Tensor::view_of(data_.data<char>() + first, {K, B, D}, format, data_.device());
    };
    const bool is_scaled = base::is_fp8(format);
    layers_.push_back({.keys = view(at),
                       .values = view(at + K * B * D * element),
                       .block_size = B,
                       .block_stride = data_.size(1) / element,
                       .head_stride = shape.heads_first ? B * D : D,
                       .token_stride = shape.heads_first ? D : K * D,
                       .key_scales = is_scaled ? scales_.slice(2 * p, 1).reshape({K}) : Tensor(),
                       .value_scales = is_scaled ? scales_.slice(2 * p + 1, 1).reshape({K}) : Tensor()});
    at += place_bytes(shape, format);
  }
}

const KvLayer& KvCache::layer(int64_t layer) const {
  int64_t place = layer;
  if (!shape_.layer_places.empty()) {
    place =
        layer < static_cast<int64_t>(shape_.layer_places.size()) ? shape_.layer_places[static_cast<size_t>(layer)] : -1;
  }
  SINTER_CHECK(place >= 0 && place < static_cast<int64_t>(layers_.size()), "[kv_cache] layer {} has no place among {}",
               layer, layers_.size());
  return layers_[static_cast<size_t>(place)];
}

void KvCache::set_scales(int64_t place, const std::vector<float>& keys, const std::vector<float>& values) {
  const KvLayer& layer = layers_.at(static_cast<size_t>(place));
  SINTER_CHECK(
      layer.key_scales && static_cast<int64_t>(keys.size()) == shape_.num_kv_heads && keys.size() == values.size(),
      "[kv_cache] {} and {} scales for place {} of {} heads in {}", keys.size(), values.size(), place,
      shape_.num_kv_heads, base::dtype_name(layer.keys.dtype()));
  DeviceRuntime& device = runtime(data_.device());
  device.copy_to_device(layer.key_scales.raw(), keys.data(), keys.size() * sizeof(float), device.stream());
  device.copy_to_device(layer.value_scales.raw(), values.data(), values.size() * sizeof(float), device.stream());
}

}  // namespace sinter::core

// Keys and values of a model in fixed-size blocks; a sequence owns a list of blocks. Layers, keys and values of a block
// lie together, so that a block moves as one range of bytes:
//
//   block b:  for each place of a layer: keys, then values, each (block_size, K, D), or (K, block_size, D) for GPUs,
//             whose blocks of threads read one head
// A layer's numbers are in the compute format, fp8 with a scale for each head, int8 or q8_0 (core/kv_format.h; D is
// then what a row of a head takes); layers may differ.
#pragma once
#include <cstdint>
#include <vector>

#include "core/tensor.h"

namespace sinter::core {

// One layer's keys and values, as kernels see them. Element d of head k of place j of block b is number
// b * block_stride + k * head_stride + j * token_stride + d.
struct KvLayer {
  Tensor keys, values;  // only where they begin and their format; empty: no cache
  int64_t block_size = 0;
  int64_t block_stride = 0, head_stride = 0, token_stride = 0;  // in elements
  Tensor key_scales, value_scales;                              // (K) f32 for fp8: number = scale * stored; else empty

  explicit operator bool() const { return static_cast<bool>(keys); }
  int64_t offset(int64_t slot, int64_t head) const {  // slot = block * block_size + place
    return slot / block_size * block_stride + slot % block_size * token_stride + head * head_stride;
  }
};
// Over two tensors (num_blocks, block_size, K, D).
KvLayer kv_layer_of(const Tensor& keys, const Tensor& values);

struct KvCacheShape {
  int64_t num_blocks = 0, block_size = 0;
  int64_t num_kv_heads = 0, head_dim = 0;
  std::vector<DType> formats;  // one for each place; f8e4m3 has scales
  // Place of each layer in a block, -1: none. Empty: layer l has place l. (Stages hold some layers only, extra heads
  // have numbers beyond the last layer.)
  std::vector<int32_t> layer_places;
  bool heads_first = false;     // (K, block_size, D)
  int64_t block_bytes() const;  // a multiple of 256
};

class KvCache {
 public:
  KvCache() = default;
  // Takes the memory; the content is undefined. Scales are `scale`, until set_scales().
  KvCache(Allocator& allocator, const KvCacheShape& shape, float scale = 1.0f);

  explicit operator bool() const { return static_cast<bool>(data_); }
  const KvCacheShape& shape() const { return shape_; }
  int64_t block_size() const { return shape_.block_size; }
  int64_t num_blocks() const { return shape_.num_blocks; }
  // Throws base::Error for a layer without a place.
  const KvLayer& layer(int64_t layer) const;
  // (num_blocks, block_bytes) u8: what moves when a block is spilled.
  const Tensor& data() const { return data_; }
  // Scales of the keys and values of a place's heads (K each). Before anything is written with others.
  void set_scales(int64_t place, const std::vector<float>& keys, const std::vector<float>& values);

 private:
  KvCacheShape shape_;
  Tensor data_;                  // (num_blocks, block_bytes) u8
  Tensor scales_;                // (places, 2, K) f32, or empty
  std::vector<KvLayer> layers_;  // by place
};

}  // namespace sinter::core

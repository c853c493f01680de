// bitsandbytes' 4-bit blocks: NF4 and FP4 codes of a tensor with one scale a block, scales themselves in 8 bits or not.
#pragma once
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/weight_format.h"
#include "io/tensor_folder.h"
#include "models/parameter_store.h"

namespace sinter::tune {

// Codes of values as the nearest entries of a code book: by midpoints, upward only above them.
class NearestCode {
 public:
  explicit NearestCode(std::span<const float> book);
  uint8_t operator()(float value) const;  // the entry's place in the book as it was given

 private:
  std::vector<float> midpoints_;
  std::vector<uint8_t> order_;
};

// The 16 numbers of nf4 or fp4.
std::vector<float> four_bit_book(base::WeightFormat format);

// Blocks of a flat tensor by their largest values: value / scale is in [-1, 1].
struct BlockCodes {
  std::vector<uint8_t> codes;  // one a value
  std::vector<float> scales;   // one a block
};
BlockCodes quantize_in_blocks(std::span<const float> values, int64_t block, const NearestCode& nearest);

// Scales of blocks in 8 bits: map[code] x largest of 256, plus the mean.
struct NestedScales {
  BlockCodes blocks;
  float offset = 0;
  std::vector<float> scales() const;  // what they stand for
};
NestedScales nest_scales(std::span<const float> scales);

// Codes in pairs, the first in the high nibble.
std::vector<uint8_t> pack_pairs(std::span<const uint8_t> codes, uint8_t last);

// A model's linear layers but the head: what a plain base keeps in NF4 with double quantization (kind = "qlora").
std::set<std::string> four_bit_tensors(const spec::ModelSpec& model);
// Reads the others as they are and these as NF4, one tensor at a time. Throws base::Error for a row width that is odd.
void load_in_four_bits(models::ParameterStore& store, const spec::ModelSpec& model, const io::TensorFolder& folder);
// The same of weights drawn at random, for a model of which only the shape is there.
void draw_in_four_bits(models::ParameterStore& store, uint64_t seed);

}  // namespace sinter::tune

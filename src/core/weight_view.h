// How a linear layer sees its weight: the numbers to multiply by, in whatever format, and what was derived from them.
//
// A plain weight is one tensor in the compute format. Any other one is a list of row blocks ("parts"), each in a format
// of its own and where it lies already, in a mapped file for example: Q, K and V or gate and up are one weight for us
// but three or two tensors there, and a file may well give V more bits than Q and K. Ops and kernels ask the accessors
// for sizes, never `data`.
#pragma once
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "base/weight_format.h"
#include "core/tensor.h"

namespace sinter::core {

using base::WeightFormat;

// Layouts a backend derived from a weight (repacked panels). Kernels fill it when `version` is older than the weight's.
class DerivedWeight {
 public:
  virtual ~DerivedWeight() = default;
  uint64_t version = 0;
};

// Rows of a weight in one format, one after the other.
struct WeightPart {
  WeightFormat format = WeightFormat::plain;
  Tensor data;       // the rows: (E, rows, K) numbers when plain, else u8 (E, bytes)
  int64_t rows = 0;  // of one expert
  // For formats that keep scales apart. A group is `group` columns with one scale; 0: the format's own block.
  int64_t group = 0;
  Tensor scales;              // f32 (E, rows, groups)
  Tensor zeros;               // int4, int8: zero points as f32 (E, rows, groups); empty: 8 and 128
  Tensor permutation;         // i32 (K): the group of each column; empty: column / group
  float global_scale = 1.0f;  // multiplies every number
};

// A weight that is not plain.
struct WeightBlocks {
  int64_t experts = 1, rows = 0, columns = 0;
  std::vector<WeightPart> parts;     // their rows add up to `rows`, in this order
  std::shared_ptr<const void> file;  // keeps what the parts point into alive, or null
};

// A low-rank term beside a weight (LoRA): columns [first_row, first_row + b.size(0)) of the product get
// scale * (x a^T) b^T added.
struct WeightAdapter {
  Tensor a;  // (r, K)
  Tensor b;  // (rows, r)
  float scale = 1.0f;
  int64_t first_row = 0;
};

struct WeightView {
  Tensor data;  // plain: (N, K), or (E, N, K) for a stack of experts, in the compute format
  std::shared_ptr<const WeightBlocks> blocks;                  // instead of data; null: plain
  std::shared_ptr<const std::vector<WeightAdapter>> adapters;  // or null
  uint64_t version = 1;                                        // grows whenever the master changes
  // Where a backend may keep a repacked copy between calls; null in training, where every step changes the weight.
  std::shared_ptr<DerivedWeight>* derived = nullptr;

  bool is_plain() const { return !blocks; }
  int64_t experts() const { return blocks ? blocks->experts : data.shape().rank() == 3 ? data.size(0) : 1; }
  int64_t rows() const { return blocks ? blocks->rows : data.size(-2); }
  int64_t columns() const { return blocks ? blocks->columns : data.size(-1); }
  // The first part's: for messages.
  std::string_view format_name() const {
    return blocks && !blocks->parts.empty() ? base::name_of(blocks->parts[0].format) : base::dtype_name(data.dtype());
  }
};

}  // namespace sinter::core

// Boxes of global tensors: the pieces of a checkpoint, whatever layout wrote them and whatever layout reads them.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "base/shape.h"
#include "train/checkpoint.h"

namespace sinter::train {

// Elements [begin, begin + count) of a flattened tensor as boxes, in order: at most 2 x axes - 1 of them.
std::vector<StateBox> boxes_of_stretch(const base::Shape& shape, int64_t begin, int64_t count);
// What two boxes of one tensor have in common; nothing when that is empty.
std::optional<StateBox> overlap(const StateBox& a, const StateBox& b);
// Calls visit(from, to, count) for every row of `common`, which lies in both boxes: from and to count elements from the
// beginning of each box, row-major.
using VisitRow = std::function<void(int64_t from, int64_t to, int64_t count)>;
void visit_rows(const StateBox& common, const StateBox& from, const StateBox& to, const VisitRow& visit);

// A box of the global tensor that lies in one stretch of a rank's values.
struct HeldPiece {
  StateBox box;
  int64_t at = 0;  // its first element in the values
};
// What elements [begin, begin + count) of a rank's values are in the global tensor; padding is left out, and with
// `only_owned` what another rank writes.
std::vector<HeldPiece> held_pieces(const StateTensor& tensor, int64_t begin, int64_t count, bool only_owned);

base::Shape global_shape(const StateTensor& tensor);

}  // namespace sinter::train

#include "train/checkpoint_boxes.h"

#include <algorithm>

namespace sinter::train {
namespace {

using base::Shape;

// Elements of one step along `axis`.
int64_t inner_elements(const Shape& shape, int axis) {
  int64_t n = 1;
  for (int i = axis + 1; i < shape.rank(); ++i) n *= shape[i];
  return n;
}

// Boxes of a stretch within axes [axis, rank); `box` fixes the axes before.
void add_boxes(const Shape& shape, int axis, StateBox box, int64_t begin, int64_t count, std::vector<StateBox>& out) {
  const int64_t inner = inner_elements(shape, axis);
  auto part_of_one = [&](int64_t first, int64_t n) {
    box.begin.set(axis, begin / inner);
    box.size.set(axis, 1);
    add_boxes(shape, axis + 1, box, first, n, out);
    begin += n;
    count -= n;
  };
  if (begin % inner != 0) part_of_one(begin % inner, std::min(count, inner - begin % inner));
  if (const int64_t whole = count / inner; whole > 0) {
    box.begin.set(axis, begin / inner);
    box.size.set(axis, whole);
    for (int i = axis + 1; i < shape.rank(); ++i) box.begin.set(i, 0), box.size.set(i, shape[i]);
    out.push_back(box);
    begin += whole * inner;
    count -= whole * inner;
  }
  if (count > 0) part_of_one(0, count);
}

int64_t flat_index(const Shape& shape, const Shape& at) {
  int64_t index = 0;
  for (int axis = 0; axis < shape.rank(); ++axis) index = index * shape[axis] + at[axis];
  return index;
}

Shape moved(const Shape& at, const Shape& from, const Shape& to) {
  Shape out = at;
  for (int axis = 0; axis < at.rank(); ++axis) out.set(axis, at[axis] - from[axis] + to[axis]);
  return out;
}

bool is_one_stretch(const StateBox& box, const Shape& shape) {
  Shape last = box.begin;
  for (int axis = 0; axis < shape.rank(); ++axis) last.set(axis, box.begin[axis] + box.size[axis] - 1);
  return flat_index(shape, last) - flat_index(shape, box.begin) + 1 == box.num_elements();
}

// A box of a tensor as boxes that are one stretch of its memory each: stacks of experts are cut within each expert.
void split_stretches(const StateBox& box, const Shape& shape, std::vector<StateBox>& out) {
  if (is_one_stretch(box, shape)) {
    out.push_back(box);
    return;
  }
  int axis = 0;
  while (box.size[axis] == 1) ++axis;
  for (int64_t i = 0; i < box.size[axis]; ++i) {
    StateBox part = box;
    part.begin.set(axis, box.begin[axis] + i);
    part.size.set(axis, 1);
    split_stretches(part, shape, out);
  }
}

}  // namespace

std::vector<StateBox> boxes_of_stretch(const Shape& shape, int64_t begin, int64_t count) {
  std::vector<StateBox> out;
  if (count > 0) add_boxes(shape, 0, {shape, shape}, begin, count, out);
  return out;
}

std::optional<StateBox> overlap(const StateBox& a, const StateBox& b) {
  StateBox common = a;
  for (int axis = 0; axis < a.begin.rank(); ++axis) {
    const int64_t begin = std::max(a.begin[axis], b.begin[axis]);
    const int64_t end = std::min(a.begin[axis] + a.size[axis], b.begin[axis] + b.size[axis]);
    if (begin >= end) return std::nullopt;
    common.begin.set(axis, begin);
    common.size.set(axis, end - begin);
  }
  return common;
}

void visit_rows(const StateBox& common, const StateBox& from, const StateBox& to, const VisitRow& visit) {
  const int rank = common.begin.rank();
  // The last axes that all three cover alike belong to one row.
  int inner = rank - 1;
  int64_t count = common.size[inner];
  while (inner > 0 && common.size[inner] == from.size[inner] && common.size[inner] == to.size[inner])
    count *= common.size[--inner];
  Shape at = common.begin;
  for (;;) {
    int64_t a = 0, b = 0;
    for (int axis = 0; axis < rank; ++axis) {
      a = a * from.size[axis] + at[axis] - from.begin[axis];
      b = b * to.size[axis] + at[axis] - to.begin[axis];
    }
    visit(a, b, count);
    int axis = inner - 1;
    while (axis >= 0 && at[axis] + 1 == common.begin[axis] + common.size[axis]) {
      at.set(axis, common.begin[axis]);
      --axis;
    }
    if (axis < 0) return;
    at.set(axis, at[axis] + 1);
  }
}

std::vector<HeldPiece> held_pieces(const StateTensor& tensor, int64_t begin, int64_t count, bool only_owned) {
  std::vector<HeldPiece> pieces;
  if (!tensor.place) {
    int64_t at = begin;
    for (const StateBox& box : boxes_of_stretch(tensor.values.shape(), begin, count)) {
      pieces.push_back({box, at});
      at += box.num_elements();
    }
    return pieces;
  }
  const StatePlace& place = *tensor.place;
  for (const StateBox& local : boxes_of_stretch(place.local_shape, place.first + begin, count)) {
    for (const spec::Box& box : place.boxes) {
      if (only_owned && !box.is_owned) continue;
      const std::optional<StateBox> common = overlap(local, {box.local, box.size});
      if (!common) continue;
      std::vector<StateBox> stretches;
      split_stretches(*common, place.local_shape, stretches);
      for (const StateBox& part : stretches) {
        pieces.push_back({{moved(part.begin, box.local, box.begin), part.size},
                          flat_index(place.local_shape, part.begin) - place.first});
      }
    }
  }
  return pieces;
}

Shape global_shape(const StateTensor& tensor) {
  return tensor.place ? tensor.place->global_shape : tensor.values.shape();
}

}  // namespace sinter::train

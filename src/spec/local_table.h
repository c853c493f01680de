// A rank's share of the parameter table: for every tensor it holds, the local shape and the boxes of the global tensor
// that stand there. Allocation, initial values, loading, checkpoints and gradient norms of any layout read these boxes.
//
// How tensors are cut (row-major, letters as in core/dims.md):
//   tensor axis   QKV by head: rows [q heads | k heads | v heads] of the rank, one box each; with more ranks than KV
//                 heads tp / K neighbours hold the same one. Gate and up by half: a box each. Output projections by
//                 columns. Token table and head by rows, padded so that all ranks hold equally many.
//   expert axis   the stacks of experts by expert
//   pipeline      blocks by stage; the table at the first stage, final norm, head and extra heads at the last. A tied
//                 head is a second copy of the table at the last stage.
// Data and context axes cut no tensors.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "spec/parameters.h"
#include "spec/schedule.h"

namespace sinter::spec {

// Sizes of the axes that cut tensors.
struct TensorLayout {
  int64_t tp = 1, ep = 1, pp = 1, interleave = 1;
  std::vector<LayerRange> stages;  // of each of pp * interleave virtual stages; empty: as even as possible

  LayerRange layers_of(int64_t num_layers, int64_t stage) const;
};
// A rank's coordinates on those axes.
struct TensorPlace {
  int64_t tp = 0, ep = 0, pp = 0;
};

// Elements [begin, begin + size) of a global tensor, held from `local` on in the rank's own.
struct Box {
  base::Shape begin, size, local;
  // Exactly one of the ranks of a layout that hold these elements owns them: it counts them in norms and writes them
  // into checkpoints.
  bool is_owned = true;

  int64_t num_elements() const { return size.num_elements(); }
};

struct LocalParameter {
  ParameterSpec info;  // as in the table, but of the local shape; its parts are those of the global tensor
  base::Shape global_shape;
  std::vector<Box> boxes;  // in the order of the local rows. Local elements outside of all boxes are padding: zeros
  // Ranks of the tensor axis whose gradients of (some of) these elements are parts of one sum even though they hold the
  // same elements: KV heads that several ranks share, norms of heads. 1: none.
  int64_t gradient_parts = 1;

  int64_t num_elements() const { return info.num_elements(); }
  bool is_whole() const { return info.shape == global_shape; }
};

// The table of one rank, in the table's order. The layout must fit the model (spec::layout_problem).
std::vector<LocalParameter> local_table(const ModelSpec& spec, const TensorLayout& layout, const TensorPlace& place);
// Every tensor whole: one rank.
std::vector<LocalParameter> whole_table(std::vector<ParameterSpec> table);
std::vector<LocalParameter> whole_table(const ModelSpec& spec);

// Heads of one rank of the tensor axis.
struct LocalHeads {
  int64_t num_heads = 0, num_kv_heads = 0;
  int64_t first_head = 0, first_kv_head = 0;
};
LocalHeads local_heads(const ModelSpec& spec, int64_t tp, int64_t rank);
// Rows of the vocabulary of one rank of the tensor axis: [begin, begin + count), in room for `padded` rows.
struct VocabRange {
  int64_t begin = 0, count = 0, padded = 0;
};
VocabRange vocab_range(int64_t vocab_size, int64_t tp, int64_t rank);

// Calls visit(global, local, count) for every stretch of a box that is contiguous in both tensors.
using VisitRun = std::function<void(int64_t global, int64_t local, int64_t count)>;
void visit_runs(const Box& box, const base::Shape& global_shape, const base::Shape& local_shape, const VisitRun& visit);

}  // namespace sinter::spec

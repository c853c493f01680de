// The one table of a model's stored tensors. Allocation, init, optimizer classes, ZeRO shards, TP slices, pipeline
// stages, checkpoints, import, export and the planner all walk this list.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/shape.h"
#include "spec/model_spec.h"

namespace sinter::spec {

// Where a piece of a stored tensor lives in a Hugging Face folder. The piece is rows [row_begin, row_begin + rows) of
// expert `expert` (or of the whole tensor), all columns; on disk it has shape (rows, columns), or (columns, rows) when
// transposed (GPT-2's Conv1D), or (rows) for vectors.
struct ParameterPart {
  std::string hf_name;
  int64_t row_begin = 0;
  int64_t rows = 0;
  int64_t expert = -1;
  bool transposed = false;
};

enum class ParameterRole { embedding, position, matrix, expert_matrix, router, head, norm, bias, adapter };
// What a tensor that is not the model's own adds to one that is: a term of a low-rank adapter (spec/adapter.h).
enum class AdapterTerm { none, a, b, magnitude };
struct AdapterPlace {
  AdapterTerm term = AdapterTerm::none;
  std::string target;               // name of the weight it stands beside
  int64_t first_row = 0, rows = 0;  // of the weight's rows
  float scale = 1.0f;               // of the term b a
  float dropout = 0.0f;             // of what a reads
};

enum class InitKind { normal, ones, zeros };

struct ParameterSpec {
  std::string name;   // "layers.3.attention.qkv.weight"
  base::Shape shape;  // (rows, columns), (E, rows, columns) or (rows)
  std::vector<ParameterPart> parts;
  ParameterRole role = ParameterRole::matrix;
  InitKind init = InitKind::normal;
  float init_std = 0.02f;
  bool decays = true;  // weight decay applies (tensors of two and more axes)
  bool trainable = true;
  AdapterPlace adapter = {};
  int64_t layer = -1;    // -1 before the first block, num_layers after the last; MTP blocks follow: num_layers + 1 + j
  int tp_axis = -1;      // axis cut by tensor parallelism: rows, columns, or -1 = replicated
  int expert_axis = -1;  // axis cut by expert parallelism

  int64_t num_elements() const { return shape.num_elements(); }
};

// Every stored tensor in order of use: embeddings, blocks, final norm, head (absent when tied), MTP blocks.
std::vector<ParameterSpec> make_parameter_table(const ModelSpec& spec);

// Sums over the table. `active` counts only the experts a token passes through.
struct ParameterCounts {
  int64_t total = 0, active = 0, embedding = 0, position = 0, head = 0;
};
ParameterCounts count_parameters(const ModelSpec& spec);

// The most bytes of logits that exist at a time.
inline constexpr int64_t kLossChunkBytes = int64_t{1088} << 20;

// Rows whose logits a loss of so many rows holds at once.
int64_t loss_chunk_rows(int64_t rows, int64_t vocab_size, int64_t element_bytes);

}  // namespace sinter::spec

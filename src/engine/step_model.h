// What the engine asks of a model: one forward over a ragged batch with a paged cache. TransformerRunner is the real
// one; tests put a fake in its place.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "core/host_batch.h"
#include "kernels/args/sampling.h"

namespace sinter::engine {

// One step's work, on the host. Used again from step to step.
struct StepBatch {
  core::HostBatch tokens;  // S sequences, each behind its cached tokens; -(r + 1): what row r of the last step chose
  std::vector<int32_t> slots;   // (T): block * block_size + place of each token's key and value
  std::vector<int32_t> tables;  // (S, table_width): blocks of each sequence; places that are not read hold 0
  int64_t table_width = 0;
  std::vector<int32_t> rows;  // tokens whose logits are asked for, ascending
  // For a model that chooses tokens itself (StepModel::chooses), one for each row; empty: the host chooses.
  std::vector<kernels::SampleRow> choices;
  std::vector<kernels::LogitEdit> edits;  // of all choices
  std::vector<uint32_t> masks;            // (n, (V + 31) / 32), likewise
  int64_t vocab_limit = 0;                // tokens from here on are not chosen
  bool wants_logprobs = false;            // of the chosen tokens, and their ranks
  void clear();
};

struct ModelLimits {
  int64_t vocab_size = 0;
  int64_t max_positions = 0;    // of a table of positions; 0: none
  int64_t window = 0;           // no layer sees keys further back; 0: some see all
  int64_t whole_beyond = 0;     // sequences longer than this are computed whole at every step (dynamic RoPE); 0: never
  int64_t context_hint = 2048;  // usual longest length: sizes a cache that nobody sized
};

class StepModel {
 public:
  virtual ~StepModel() = default;
  virtual const ModelLimits& limits() const = 0;

  // Cache memory: takes it, gives it back. A cache that was given back has lost its content.
  virtual int64_t bytes_per_block(int64_t block_size) const = 0;
  // Of the weights that a step of so many tokens reads, `rows` of them through the head: experts as many as are likely
  // to be chosen.
  virtual double weight_bytes(int64_t tokens, int64_t rows) const { return 0; }
  virtual int64_t free_bytes() const = 0;
  virtual void take_cache(int64_t num_blocks, int64_t block_size) = 0;
  virtual void release_cache() = 0;

  // Computes all tokens of the batch and writes their keys and values, behind all that was asked for before. Where the
  // model chooses it may return before that is done.
  virtual void forward(const StepBatch& batch) = 0;
  // Whether forward() also chooses tokens by batch.choices. Then there are no logits, and chosen() is to be called once
  // for each batch with choices or without rows, in their order: it waits for that batch. One more forward() may come
  // before, whose tokens may be what that batch chooses (of a row that has ended, anything).
  virtual bool chooses() const { return false; }
  struct Chosen {
    std::span<const int32_t> tokens;  // as kernels::SampleArgs says; until the next chosen()
    std::span<const float> logprobs;  // with wants_logprobs
    std::span<const int32_t> ranks;   // likewise
  };
  virtual Chosen chosen() { return {}; }
  // Logits of batch.rows[first, first + count) of the last forward: (count, V) on the host, until the next call.
  // count is at most max_rows().
  virtual std::span<const float> logits(int64_t first, int64_t count) = 0;
  virtual int64_t max_rows() const = 0;
  // The hidden state that the head reads for batch.rows[row] of the last forward, after the last norm: (C). Throws
  // where the model has none to give.
  virtual std::vector<float> hidden_state(int64_t row);
  // Log-probabilities of one target for each row of the last logits() (-1: leave out), by the kernel that training
  // takes its loss from.
  virtual void logprobs(std::span<const int32_t> targets, std::span<float> out) = 0;
};

}  // namespace sinter::engine

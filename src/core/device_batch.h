// Device memory for ragged batches, filled again and again: the trainer's micro-batches and the engine's steps.
//
// All arrays of a batch lie in one block and arrive by one copy. Where an array lies depends on the shape alone, so
// that what was captured for a shape can be replayed with other content. Nothing is allocated after the constructor.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "core/host_batch.h"

namespace sinter::core {

// Counts that a batch is padded to, or the most there can be. Padding tokens belong to no sequence and are written to
// no slot; padding sequences are empty.
struct BatchShape {
  int64_t tokens = 0;
  int64_t sequences = 0;
  bool has_targets = false;
  int64_t table_width = 0;  // blocks of the longest sequence; 0: no cache
  int64_t rows = 0;         // tokens whose hidden states are picked out
  int64_t extra_words = 0;  // whatever else arrives with the batch
  int64_t num_words() const;
};

// What a batch over a paged cache has beside its tokens.
struct PagedParts {
  std::span<const int32_t> slots;   // (T)
  std::span<const int32_t> tables;  // (S, table_width)
  int64_t table_width = 0;
  std::span<const int32_t> rows;   // tokens
  std::span<const int32_t> extra;  // the rest of extra_words is 0
};

class DeviceBatch {
 public:
  DeviceBatch(Allocator& allocator, const BatchShape& most);

  // Pads the batch to `shape` and copies it, ordered on the device's main stream. Bounds on lengths are the batch's own
  // unless given. Valid until the next call; throws base::Error where the shape is below the batch or above `most`.
  struct Lengths {
    int64_t max_query = 0, max_context = 0;  // 0: of this batch
  };
  const RaggedBatch& load(const HostBatch& host, const BatchShape& shape, const Lengths& lengths,
                          const PagedParts& paged = {});

  const RaggedBatch& get() const { return batch_; }
  KvView& kv() { return kv_; }                    // its cache is the caller's to set
  const Tensor& rows() const { return rows_; }    // (rows) i32; padding holds 0
  const Tensor& extra() const { return extra_; }  // (extra_words) i32
  const BatchShape& most() const { return most_; }

 private:
  void place(const BatchShape& shape);
  void fill(const HostBatch& host, const PagedParts& paged);

  BatchShape most_, shape_;
  Tensor block_;               // (words) i32
  std::vector<int32_t> host_;  // its content
  RaggedBatch batch_;
  KvView kv_;
  Tensor rows_, extra_;
};

}  // namespace sinter::core

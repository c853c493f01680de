// A ragged batch on the host, as loaders and schedulers build it, and its way to a device.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "core/ragged_batch.h"

namespace sinter::core {

struct HostBatch {
  std::vector<int32_t> tokens, positions, sequence_of;  // (T)
  std::vector<int32_t> offsets{0};                      // (S + 1)
  std::vector<int32_t> contexts;                        // (S)
  std::vector<int32_t> targets;                         // (T), or empty; -1 = not supervised

  int64_t num_tokens() const { return static_cast<int64_t>(tokens.size()); }
  int64_t num_sequences() const { return static_cast<int64_t>(contexts.size()); }
  // Appends a sequence whose first token stands at position `cached` (tokens before it are in a cache).
  void add_sequence(std::span<const int32_t> sequence, int32_t cached = 0);
  // Every token's target is the next one of its sequence; a sequence's last token has none.
  void set_next_token_targets();
  // Appends empty sequences until there are `count`: shapes then do not depend on how many documents a batch holds.
  void pad_sequences(int64_t count);
};

// Copies to the allocator's device and waits. On the shapes device only the sizes matter.
RaggedBatch upload(Allocator& allocator, const HostBatch& batch);

}  // namespace sinter::core

#include "core/host_batch.h"

#include <algorithm>

namespace sinter::core {

void HostBatch::add_sequence(std::span<const int32_t> sequence, int32_t cached) {
  const auto index = static_cast<int32_t>(num_sequences());
  const auto length = static_cast<int32_t>(sequence.size());
  tokens.insert(tokens.end(), sequence.begin(), sequence.end());
  for (int32_t i = 0; i < length; ++i) positions.push_back(cached + i);
  sequence_of.insert(sequence_of.end(), sequence.size(), index);
  offsets.push_back(offsets.back() + length);
  contexts.push_back(cached + length);
}

void HostBatch::set_next_token_targets() {
  targets.assign(tokens.size(), -1);
  for (size_t t = 0; t + 1 < tokens.size(); ++t) {
    if (sequence_of[t] == sequence_of[t + 1]) targets[t] = tokens[t + 1];
  }
}

void HostBatch::pad_sequences(int64_t count) {
  while (num_sequences() < count) {
    offsets.push_back(offsets.back());
    contexts.push_back(0);
  }
}

RaggedBatch upload(Allocator& allocator, const HostBatch& batch) {
  const int64_t T = batch.num_tokens(), S = batch.num_sequences();
  RaggedBatch device;
  device.tokens = make_tensor(allocator, {T}, batch.tokens);
  device.positions = make_tensor(allocator, {T}, batch.positions);
  device.sequence_of = make_tensor(allocator, {T}, batch.sequence_of);
  device.offsets = make_tensor(allocator, {S + 1}, batch.offsets);
  device.contexts = make_tensor(allocator, {S}, batch.contexts);
  if (!batch.targets.empty()) device.targets = make_tensor(allocator, {T}, batch.targets);
  device.num_tokens = T;
  device.num_sequences = S;
  for (int64_t s = 0; s < S; ++s) {
    const auto i = static_cast<size_t>(s);
    device.max_query = std::max<int64_t>(device.max_query, batch.offsets[i + 1] - batch.offsets[i]);
    device.max_context = std::max<int64_t>(device.max_context, batch.contexts[i]);
  }
  device.equal_lengths = has_equal_lengths(batch.offsets, device.max_query, T);
  device.host_contexts = batch.contexts;
  return device;
}

}  // namespace sinter::core

#include "core/device_batch.h"

#include <algorithm>

#include "base/error.h"

namespace sinter::core {
namespace {

// Arrays begin at multiples of 256 bytes.
constexpr int64_t kAlignWords = 64;
int64_t aligned(int64_t words) { return (words + kAlignWords - 1) / kAlignWords * kAlignWords; }

}  // namespace

int64_t BatchShape::num_words() const {
  const int64_t per_token = 3 + (has_targets ? 1 : 0) + (table_width > 0 ? 1 : 0);
  return per_token * aligned(tokens) + aligned(sequences + 1) + aligned(sequences) + aligned(sequences * table_width) +
         aligned(rows) + aligned(extra_words);
}

DeviceBatch::DeviceBatch(Allocator& allocator, const BatchShape& most)
    : most_(most),
      block_(allocator, {most.num_words()}, base::DType::i32),
      host_(static_cast<size_t>(most.num_words()), 0) {
  place(most);
}

void DeviceBatch::place(const BatchShape& shape) {
  shape_ = shape;
  int64_t next = 0;
  auto take = [&](int64_t count, Shape as) {
    Tensor t = block_.slice(next, count).reshape(as);
    next += aligned(count);
    return t;
  };
  const int64_t T = shape.tokens, S = shape.sequences;
  batch_.tokens = take(T, {T});
  batch_.positions = take(T, {T});
  batch_.sequence_of = take(T, {T});
  batch_.offsets = take(S + 1, {S + 1});
  batch_.contexts = take(S, {S});
  batch_.targets = shape.has_targets ? take(T, {T}) : Tensor();
  kv_.slots = shape.table_width > 0 ? take(T, {T}) : Tensor();
  kv_.block_tables = shape.table_width > 0 ? take(S * shape.table_width, {S, shape.table_width}) : Tensor();
  rows_ = shape.rows > 0 ? take(shape.rows, {shape.rows}) : Tensor();
  extra_ = shape.extra_words > 0 ? take(shape.extra_words, {shape.extra_words}) : Tensor();
  batch_.kv = shape.table_width > 0 ? &kv_ : nullptr;
  batch_.num_tokens = T;
  batch_.num_sequences = S;
}

// The order is place()'s.
void DeviceBatch::fill(const HostBatch& host, const PagedParts& paged) {
  auto next = host_.begin();
  auto put = [&](std::span<const int32_t> values, int64_t count, int32_t padding) {
    std::copy(values.begin(), values.end(), next);
    std::fill(next + static_cast<int64_t>(values.size()), next + count, padding);
    next += aligned(count);
  };
  const int64_t T = shape_.tokens, S = shape_.sequences;
  put(host.tokens, T, 0);
  put(host.positions, T, 0);
  put(host.sequence_of, T, -1);
  put(host.offsets, S + 1, host.offsets.back());
  put(host.contexts, S, 0);
  if (shape_.has_targets) put(host.targets, T, -1);
  if (shape_.table_width > 0) {
    put(paged.slots, T, -1);
    for (int64_t s = 0; s < S; ++s) {
      const bool is_padding = s >= host.num_sequences();
      const auto row = is_padding ? std::span<const int32_t>{}
                                  : paged.tables.subspan(static_cast<size_t>(s * paged.table_width),
                                                         static_cast<size_t>(paged.table_width));
      std::copy(row.begin(), row.end(), next + s * shape_.table_width);
      std::fill(next + s * shape_.table_width + static_cast<int64_t>(row.size()), next + (s + 1) * shape_.table_width,
                0);
    }
    next += aligned(S * shape_.table_width);
  }
  if (shape_.rows > 0) put(paged.rows, shape_.rows, 0);
  if (shape_.extra_words > 0) put(paged.extra, shape_.extra_words, 0);
}

const RaggedBatch& DeviceBatch::load(const HostBatch& host, const BatchShape& shape, const Lengths& lengths,
                                     const PagedParts& paged) {
  SINTER_CHECK(
      shape.num_words() <= most_.num_words() && host.num_tokens() <= shape.tokens &&
          host.num_sequences() <= shape.sequences && paged.table_width <= shape.table_width &&
          static_cast<int64_t>(paged.rows.size()) <= shape.rows &&
          static_cast<int64_t>(paged.extra.size()) <= shape.extra_words && shape.has_targets == !host.targets.empty(),
      "[device_batch] {} tokens of {} sequences, {} blocks wide, {} rows do not go into a batch of {}, {}, {}, {}",
      host.num_tokens(), host.num_sequences(), paged.table_width, paged.rows.size(), shape.tokens, shape.sequences,
      shape.table_width, shape.rows);
  place(shape);
  fill(host, paged);
  DeviceRuntime& device = runtime(block_.device());
  device.copy_to_device(block_.raw(), host_.data(), static_cast<size_t>(shape.num_words()) * sizeof(int32_t),
                        device.stream());
  batch_.max_query = lengths.max_query;
  batch_.max_context = lengths.max_context;
  size_t filled = 0;
  for (size_t s = 0; s < host.contexts.size(); ++s) {
    const int64_t query = host.offsets[s + 1] - host.offsets[s];
    if (query > 0) filled = s + 1;
    if (lengths.max_query == 0) batch_.max_query = std::max(batch_.max_query, query);
    if (lengths.max_context == 0) batch_.max_context = std::max<int64_t>(batch_.max_context, host.contexts[s]);
  }
  batch_.filled_sequences = std::min(coarse_bound(static_cast<int64_t>(filled)), shape.sequences);
  batch_.host_contexts = host.contexts;
  batch_.host_contexts.resize(static_cast<size_t>(shape.sequences), 0);
  batch_.equal_lengths =
      host.num_sequences() == shape.sequences && has_equal_lengths(host.offsets, batch_.max_query, shape.tokens);
  return batch_;
}

}  // namespace sinter::core

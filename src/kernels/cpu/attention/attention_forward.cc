// Attention forward: each task walks the keys its queries see, tile by tile, with a running softmax.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "core/kv_format.h"
#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/formats.h"
#include "kernels/cpu/highway_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention/attention_forward.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/attention/attention-inl.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sinter::kernels::cpu {
namespace HWY_NAMESPACE {

// Where the key and value of place j of a sequence lie: in the packed rows or in the cache's blocks.
template <class T>
struct KeyRows {
  const AttentionForwardArgs& args;
  const SequenceRows& sequence;
  int64_t kv_head;

  void at(int64_t j, const T** key, const T** value) const {
    const AttentionShape& shape = args.shape;
    if (args.cache) {
      int64_t block_size = args.cache.block_size;
      int64_t block =
          args.block_tables.template data<int32_t>()[sequence.index * args.block_tables.size(1) + j / block_size];
      int64_t offset = args.cache.offset(block * block_size + j % block_size, kv_head);
      *key = args.cache.keys.template data<T>() + offset;
      *value = args.cache.values.template data<T>() + offset;
      return;
    }
    const T* row = args.qkv.template data<T>() + (sequence.first_row + j) * args.qkv.size(-1);
    *key = row + (shape.num_heads + kv_head) * shape.head_dim;
    *value = row + (shape.num_heads + shape.num_kv_heads + kv_head) * shape.head_dim;
  }
};

// `count` codes of 8 bits times their scale.
HWY_INLINE void scale_codes(const uint8_t* codes, int64_t count, float scale, float* x) {
  const hn::Rebind<int8_t, FloatTag> d8;
  const hn::Rebind<int32_t, FloatTag> d32;
  int64_t i = 0;
  for (; i + static_cast<int64_t>(kLanes) <= count; i += static_cast<int64_t>(kLanes)) {
    const auto code = hn::PromoteTo(d32, hn::LoadU(d8, reinterpret_cast<const int8_t*>(codes + i)));
    store(hn::Mul(hn::ConvertTo(FloatTag(), code), set(scale)), x + i);
  }
  for (; i < count; ++i) x[i] = scale * static_cast<float>(static_cast<int8_t>(codes[i]));
}

// core::decode_kv_row with vectors.
inline void decode_row(base::DType format, const uint8_t* row, int64_t dim, float scale, float* x) {
  auto half = [](const uint8_t* p) {
    base::f16 value;
    std::memcpy(&value.bits, p, 2);
    return static_cast<float>(value);
  };
  if (format == base::DType::i8) return scale_codes(row, dim, half(row + dim), x);
  if (format != base::DType::u8) return core::decode_kv_row(format, row, dim, scale, x);
  for (int64_t i = 0; i < dim; i += 32, row += 34) scale_codes(row + 2, 32, half(row), x + i);
}

// One task and its tiles. Row r of a key/value head is query first + r % count of head kv_head * group + r / count.
template <class Tiles, class T>
class Forward {
 public:
  using Unit = typename Tiles::Unit;
  Forward(const AttentionForwardArgs& args, const ForwardTask& task, const PairKernel* kernel)
      : args_(args), shape_(args.shape), task_(task), kernel_(kernel), group_(shape_.num_heads / shape_.num_kv_heads) {
    rows_ = group_ * task.count;
    padded_rows_ = round_up(rows_, 16);
    dim_ = shape_.head_dim;
    padded_dim_ = round_up(dim_, Tiles::kDimMultiple);
    units_ = padded_dim_ / Tiles::kPerUnit;
    first_position_ = task.sequence.context - task.sequence.num_queries + task.first;
    take_scratch();
  }

  void run() {
    for (int64_t k = 0; k < task_.num_kv_heads; ++k) {
      select(k);
      load_queries();
      if (shape_.window > 0) std::fill(out_, out_ + rows_ * padded_dim_, 0.0f);
      std::fill(largest_, largest_ + padded_rows_, -std::numeric_limits<float>::infinity());
      std::fill(sums_, sums_ + rows_ * static_cast<int64_t>(kLanes), 0.0f);
    }
    int64_t last = first_position_ + task_.count - 1;
    int64_t first_key = shape_.window > 0 ? std::max<int64_t>(0, first_position_ - shape_.window + 1) : 0;
    for (int64_t tile = first_key / kTileKeys * kTileKeys; tile <= last; tile += kTileKeys) {
      load_rows(tile, std::min(kTileKeys, last + 1 - tile));
      for (int64_t k = 0; k < task_.num_kv_heads; ++k) {
        select(k);
        arrange_keys(k);
        visit(tile);
      }
    }
    for (int64_t k = 0; k < task_.num_kv_heads; ++k) {
      select(k);
      write_out();
    }
  }

 private:
  // Tiles are shared by the key/value heads of the task; what a row carries from tile to tile is kept for each.
  void take_scratch() {
    state_units_ = padded_rows_ * (units_ + padded_dim_ + 1 + static_cast<int64_t>(kLanes));
    int64_t row_units = kTileKeys * units_, square = std::min(padded_rows_, kStripRows) * kTileKeys;
    int64_t stack_units = Tiles::stack_units(padded_dim_);
    uint32_t* next = attention_scratch(row_units + stack_units + 2 * square + padded_rows_ +
                                       task_.num_kv_heads * (2 * row_units + state_units_));
    auto take = [&](int64_t units) { return std::exchange(next, next + units); };
    rows_buffer_ = reinterpret_cast<Unit*>(take(2 * task_.num_kv_heads * row_units));
    keys_ = reinterpret_cast<Unit*>(take(row_units));
    stack_buffer_ = reinterpret_cast<Unit*>(take(stack_units));
    scores_ = reinterpret_cast<float*>(take(square));
    // f32 probabilities replace the scores they come from
    factors_ = Tiles::kPerUnit == 1 ? reinterpret_cast<Unit*>(scores_) : reinterpret_cast<Unit*>(take(square));
    decay_ = reinterpret_cast<float*>(take(padded_rows_));
    states_ = next;
  }

  // Makes key/value head k of the task the current one.
  void select(int64_t k) {
    kv_head_ = task_.kv_head + k;
    uint32_t* next = states_ + k * state_units_;
    auto take = [&](int64_t units) { return std::exchange(next, next + units); };
    queries_ = reinterpret_cast<Unit*>(take(padded_rows_ * units_));
    out_ = reinterpret_cast<float*>(take(padded_rows_ * padded_dim_));
    largest_ = reinterpret_cast<float*>(take(padded_rows_));
    sums_ = reinterpret_cast<float*>(take(padded_rows_ * static_cast<int64_t>(kLanes)));
  }

  // Lets every row that may see a key of this tile take it in. Rows go in steps of 16, as tile registers need; heads
  // whose rows do not start at such a step are taken together, masks sorting out who sees what.
  void visit(int64_t tile) {
    if (group_ > 1 && task_.count % 16 != 0) return visit_rows(tile, 0, rows_);
    int64_t begin = std::max<int64_t>(0, tile - first_position_) / 16 * 16, end = task_.count;
    if (shape_.window > 0) {
      end = std::min(end, round_up(tile + kTileKeys - 1 + shape_.window - first_position_, 16));
    }
    for (int64_t first = 0; begin < end && first < rows_; first += task_.count)
      visit_rows(tile, first + begin, first + end);
  }

  void visit_rows(int64_t tile, int64_t begin, int64_t end) {
    for (int64_t first = begin; first < end; first += kStripRows)
      visit_strip(tile, first, std::min(first + kStripRows, end));
  }

  // At most kStripRows rows.
  void visit_strip(int64_t tile, int64_t begin, int64_t end) {
    constexpr int64_t kFactorUnits = kTileKeys / Tiles::kPerUnit;
    Tiles::multiply(kernel_, end - begin, kTileKeys, units_, queries_ + begin * units_, units_, keys_, kTileKeys,
                    scores_, kTileKeys, false);
    hide_keys(tile, begin, end);
    update_largest(begin, end);
    // Without a window every row begins with the first tile.
    bool adds = tile > 0 || shape_.window > 0;
    if (adds) scale_out(begin, end);
    if (shape_.dropout > 0) {
      exponentiate<true>(tile, begin, end);
    } else {
      exponentiate<false>(tile, begin, end);
    }
    Tiles::multiply(kernel_, end - begin, padded_dim_, kFactorUnits, factors_, kFactorUnits, values_, padded_dim_,
                    out_ + begin * padded_dim_, padded_dim_, adds);
  }

  // How far ahead rows are asked for that are copied one after the other.
  static constexpr int64_t kRowsAhead = 32;
  static constexpr float kLowest = -std::numeric_limits<float>::infinity();
  int64_t head_of(int64_t r) const { return kv_head_ * group_ + r / task_.count; }
  int64_t token_of(int64_t r) const { return task_.sequence.first_row + task_.first + r % task_.count; }
  const T* query_row(int64_t r) const {
    return args_.qkv.template data<T>() + token_of(r) * args_.qkv.size(-1) + head_of(r) * dim_;
  }
  int64_t position_of(int64_t r) const { return first_position_ + r % task_.count; }

  void load_queries() {
    for (int64_t r = 0; r < rows_; ++r) {
      const T* row = query_row(r);
      if (r + kRowsAhead < rows_) ask_for(query_row(r + kRowsAhead), dim_);
      Tiles::load_row(row, static_cast<size_t>(dim_), static_cast<size_t>(padded_dim_), queries_ + r * units_);
    }
  }

  // Copies the keys and values [tile, tile + count) of all heads of the task, in the order they lie in memory, into a
  // (kTileKeys, units) tile each; zeros beyond.
  void load_rows(int64_t tile, int64_t count) {
    KeyRows<T> source{args_, task_.sequence, task_.kv_head};
    const T *key = nullptr, *value = nullptr;
    size_t dim = static_cast<size_t>(dim_), padded = static_cast<size_t>(padded_dim_);
    if (args_.cache && args_.cache.keys.dtype() != args_.qkv.dtype()) return load_coded_rows(tile, count);
    int64_t heads = task_.num_kv_heads, apart = args_.cache ? args_.cache.head_stride : dim_;
    next_key_ = tile + kTileKeys;
    end_of_next_ = std::min(next_key_ + kTileKeys, first_position_ + task_.count);
    for (int64_t j = 0; j < count; ++j) {
      source.at(tile + j, &key, &value);
      for (int64_t k = 0; k < heads; ++k) Tiles::load_row(key + k * apart, dim, padded, key_rows(k) + j * units_);
      for (int64_t k = 0; k < heads; ++k) Tiles::load_row(value + k * apart, dim, padded, value_rows(k) + j * units_);
      if (rows_ < kTileKeys) ask_for_next_key();
    }
    clear_rows(count);
  }

  // Keys and values from `count` of the tile on are zeros.
  void clear_rows(int64_t count) {
    for (int64_t k = 0; k < task_.num_kv_heads; ++k) {
      std::fill(key_rows(k) + count * units_, key_rows(k) + kTileKeys * units_, Unit{});
      std::fill(value_rows(k) + count * units_, value_rows(k) + kTileKeys * units_, Unit{});
    }
  }

  // The same from a cache in another format (core/kv_format.h).
  void load_coded_rows(int64_t tile, int64_t count) {
    const KvLayer& cache = args_.cache;
    const int32_t* table =
        args_.block_tables.template data<int32_t>() + task_.sequence.index * args_.block_tables.size(1);
    const auto element = static_cast<int64_t>(base::dtype_bytes(cache.keys.dtype()));
    next_key_ = end_of_next_ = 0;
    numbers_.resize(static_cast<size_t>(dim_));
    if constexpr (Tiles::kPerUnit == 2) rounded_.resize(numbers_.size());
    auto load = [&](const Tensor& from, const Tensor& scales, int64_t offset, int64_t head, Unit* to) HWY_ATTR {
      decode_row(cache.keys.dtype(), from.template data<uint8_t>() + offset * element, dim_,
                 scales ? scales.template data<float>()[head] : 1.0f, numbers_.data());
      if constexpr (Tiles::kPerUnit == 2) {
        base::convert_elements(base::DType::f32, numbers_.data(), base::DType::bf16, rounded_.data(), rounded_.size());
        Tiles::load_row(rounded_.data(), rounded_.size(), static_cast<size_t>(padded_dim_), to);
      } else {
        Tiles::load_row(numbers_.data(), numbers_.size(), static_cast<size_t>(padded_dim_), to);
      }
    };
    for (int64_t j = 0; j < count; ++j) {
      const int64_t place = tile + j,
                    slot = table[place / cache.block_size] * cache.block_size + place % cache.block_size;
      for (int64_t k = 0; k < task_.num_kv_heads; ++k) {
        const int64_t head = task_.kv_head + k, offset = cache.offset(slot, head);
        load(cache.keys, cache.key_scales, offset, head, key_rows(k) + j * units_);
        load(cache.values, cache.value_scales, offset, head, value_rows(k) + j * units_);
      }
    }
    clear_rows(count);
  }

  // Asks for one key of the next tile: where rows lie far apart the hardware does not guess them. Where there are rows
  // enough, one key for each, between other work: a burst would wait for the few requests a core has under way.
  void ask_for_next_key() {
    if (next_key_ >= end_of_next_) return;
    const T *key = nullptr, *value = nullptr;
    KeyRows<T>{args_, task_.sequence, task_.kv_head}.at(next_key_++, &key, &value);
    ask_for(key, task_.num_kv_heads * dim_);
    ask_for(value, task_.num_kv_heads * dim_);
  }

  // Keys of head k of the task transposed to (units, kTileKeys), values as second factor.
  void arrange_keys(int64_t k) {
    transpose_units(reinterpret_cast<const uint32_t*>(key_rows(k)), kTileKeys, units_,
                    reinterpret_cast<uint32_t*>(keys_));
    values_ = Tiles::stack(value_rows(k), padded_dim_, stack_buffer_);
  }
  Unit* key_rows(int64_t k) const { return rows_buffer_ + 2 * k * kTileKeys * units_; }
  Unit* value_rows(int64_t k) const { return rows_buffer_ + (2 * k + 1) * kTileKeys * units_; }

  // Sets the scores of keys a row does not see to -inf.
  void hide_keys(int64_t tile, int64_t begin, int64_t end) {
    bool is_one_head = begin / task_.count == (end - 1) / task_.count;
    int64_t lowest = is_one_head ? position_of(begin) : first_position_;
    int64_t highest = is_one_head ? position_of(end - 1) : first_position_ + task_.count - 1;
    if (lowest >= tile + kTileKeys - 1 && (shape_.window == 0 || highest - shape_.window < tile)) return;
    for (int64_t r = begin; r < end; ++r) {
      float* row = scores_ + (r - begin) * kTileKeys;
      int64_t position = position_of(r);
      int64_t seen = std::clamp<int64_t>(position + 1 - tile, 0, kTileKeys);
      int64_t hidden = shape_.window > 0 ? std::clamp<int64_t>(position - shape_.window + 1 - tile, 0, kTileKeys) : 0;
      std::fill(row, row + hidden, kLowest);
      std::fill(row + std::max(seen, hidden), row + kTileKeys, kLowest);
    }
  }

  // Puts the largest score of each row into decay_.
  void find_largest(int64_t begin, int64_t end) {
    const float* row = scores_;
    int64_t r = begin;
#if HWY_TARGET <= HWY_AVX3
    for (; r + 16 <= end; r += 16) {
      Floats tops[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i, row += kTileKeys) tops[i] = largest_of(row);
      store(max_lanes_of_16(tops), decay_ + r);
    }
#endif
    for (; r < end; ++r, row += kTileKeys) decay_[r] = max_lanes(largest_of(row));
  }
  static HWY_INLINE Floats largest_of(const float* row) {
    Floats top = load(row);
    for (size_t i = kLanes; i < kTileKeys; i += kLanes) top = hn::Max(top, load(row + i));
    return top;
  }

  // Moves `largest` (in units of log2) up to the tile's.
  void update_largest(int64_t begin, int64_t end) {
    find_largest(begin, end);
    const Floats factor = set(shape_.scale * kLog2E);
    for (int64_t r = begin; r < end; r += static_cast<int64_t>(kLanes)) {
      Floats before = load(largest_ + r), after = hn::Max(hn::Mul(load(decay_ + r), factor), before);
      // A row that has seen nothing yet has sums of 0, which any finite stand-in for -inf keeps.
      Floats finite = hn::IfThenElse(hn::Eq(after, set(kLowest)), zero(), after);
      store(after, largest_ + r);
      store(exp2_nonpositive<false>(hn::Sub(before, finite)), decay_ + r);
    }
  }

  void scale_out(int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      if (decay_[r] == 1.0f) continue;
      Floats decay = set(decay_[r]);
      float* row = out_ + r * padded_dim_;
      for (size_t i = 0; i < static_cast<size_t>(padded_dim_); i += kLanes)
        store(hn::Mul(load(row + i), decay), row + i);
    }
  }

  // Scores to probabilities, up to the factor 2^largest.
  template <bool kDrops>
  void exponentiate(int64_t tile, int64_t begin, int64_t end) {
    constexpr bool kIsShort = Tiles::kPerUnit == 2;
    constexpr int64_t kSumLanes = static_cast<int64_t>(kLanes);
    // Copies: members would be read again after each store.
    const float *score = scores_, *largest = largest_, *decay = decay_;
    Unit* factor = factors_;
    float *sums = sums_, kept[kTileKeys];
    const Floats scale = set(shape_.scale * kLog2E);
    for (int64_t r = begin; r < end; ++r) {
      ask_for_next_key();
      Floats shift = set(largest[r] == kLowest ? 0.0f : largest[r]);
      Floats sum = hn::Mul(load(sums + r * kSumLanes), set(decay[r]));
      if constexpr (kDrops) dropout_factors(shape_, head_of(r), token_of(r), tile, kept);
      for (size_t i = 0; i < kTileKeys; i += 2 * kLanes) {
        Floats low = exp2_nonpositive<kIsShort>(hn::MulSub(load(score + i), scale, shift));
        Floats high = exp2_nonpositive<kIsShort>(hn::MulSub(load(score + i + kLanes), scale, shift));
        sum = hn::Add(sum, hn::Add(low, high));
        if constexpr (kDrops) low = hn::Mul(low, load(kept + i)), high = hn::Mul(high, load(kept + i + kLanes));
        Tiles::store_factors(low, high, factor + i / Tiles::kPerUnit);
      }
      store(sum, sums + r * kSumLanes);
      score += kTileKeys;
      factor += kTileKeys / Tiles::kPerUnit;
    }
  }

  T* out_row(int64_t r) const {
    return args_.out.template data<T>() + (token_of(r) * shape_.num_heads + head_of(r)) * dim_;
  }

  void write_out() {
    for (int64_t r = 0; r < rows_; ++r) {
      if (r + kRowsAhead < rows_) ask_for(out_row(r + kRowsAhead), dim_);
      float sum = sum_lanes(load(sums_ + r * static_cast<int64_t>(kLanes)));
      Floats inverse = set(1.0f / sum);
      const float* row = out_ + r * padded_dim_;
      T* out = out_row(r);
      for_vectors(static_cast<size_t>(dim_),
                  [&](size_t i, size_t n) HWY_ATTR { store_n(hn::Mul(load(row + i), inverse), out + i, n); });
      if (args_.lse) {
        int64_t tokens = args_.qkv.size(0);
        args_.lse.template data<float>()[head_of(r) * tokens + token_of(r)] = (largest_[r] + std::log2(sum)) * kLn2;
      }
    }
  }

  std::vector<float> numbers_;  // a row of a cache in another format
  std::vector<bf16> rounded_;
  const AttentionForwardArgs& args_;
  const AttentionShape& shape_;
  const ForwardTask& task_;
  const PairKernel* kernel_;
  int64_t group_, rows_, padded_rows_, dim_, padded_dim_, units_, first_position_, state_units_, kv_head_ = 0;
  int64_t next_key_ = 0, end_of_next_ = 0;  // keys of the next tile that have not been asked for
  uint32_t* states_;
  Unit* queries_;      // (rows, units)
  Unit* rows_buffer_;  // (heads of the task, 2, kTileKeys, units): keys, then values, as they come
  Unit* keys_;         // (units, kTileKeys)
  Unit* stack_buffer_;
  const Unit* values_;  // (kTileKeys / kPerUnit, padded dim)
  float* out_;          // (rows, padded dim)
  float* scores_;       // (rows of a strip, kTileKeys)
  Unit* factors_;       // (rows of a strip, kTileKeys / kPerUnit)
  float* largest_;      // (rows) largest score so far, times scale, in log2
  float* decay_;        // (rows) what earlier sums are multiplied by
  float* sums_;         // (rows, kLanes)
};

void attention_forward_task(const AttentionForwardArgs& args, const ForwardTask& task, const PairKernel* kernel) {
#if HWY_TARGET <= HWY_AVX3
  if (kernel) return Forward<PairTiles, bf16>(args, task, kernel).run();
#endif
  with_format(args.qkv.dtype(), "attention_forward",
              [&]<class T>(T) { Forward<FloatTiles, T>(args, task, nullptr).run(); });
}

}  // namespace HWY_NAMESPACE
}  // namespace sinter::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sinter::kernels::cpu {

HWY_EXPORT(attention_forward_task);

namespace {

// Key/value heads that a decode task takes together: neighbours in memory, so that the cache is read in long pieces.
// No result depends on the number, so it may follow the threads.
int64_t heads_together(const AttentionShape& shape, const std::vector<SequenceRows>& sequences, int64_t context) {
  int64_t total = 0, pieces = base::num_threads() * (sequences.size() == 1 ? 1 : 2);
  for (const SequenceRows& s : sequences) total += s.context * shape.num_kv_heads;
  return std::clamp<int64_t>(total / pieces / std::max<int64_t>(context, 1), 1, shape.num_kv_heads);
}

// Queries of a task: tasks are large where there are some for every thread. No result depends on the number either.
int64_t queries_of_task(const AttentionShape& shape, const std::vector<SequenceRows>& sequences) {
  int64_t rows = 0, group = shape.num_heads / shape.num_kv_heads;
  for (const SequenceRows& s : sequences) rows += s.num_queries * shape.num_heads;
  int64_t share = std::clamp(rows / (4 * base::num_threads()), kFewestTaskRows, kMostTaskRows);
  return std::max<int64_t>(16, share / group / 16 * 16);
}

// The longest sequences first, so that threads end together; the blocks of one head together, so that its keys stay in
// cache, and the block that sees most first.
std::vector<ForwardTask> cut_forward(const AttentionForwardArgs& args) {
  std::vector<ForwardTask> tasks;
  int64_t kv_heads = args.shape.num_kv_heads, group = args.shape.num_heads / kv_heads;
  std::vector<SequenceRows> sequences = sequences_of(*args.batch, static_cast<bool>(args.cache));
  int64_t queries = queries_of_task(args.shape, sequences);
  std::stable_sort(sequences.begin(), sequences.end(),
                   [](const SequenceRows& a, const SequenceRows& b) { return a.context > b.context; });
  for (const SequenceRows& sequence : sequences) {
    bool is_decode = sequence.num_queries * group <= 16;
    int64_t together = is_decode ? heads_together(args.shape, sequences, sequence.context) : 1;
    int64_t blocks = (sequence.num_queries + queries - 1) / queries;
    for (int64_t kv_head = 0; kv_head < kv_heads; kv_head += together) {
      for (int64_t first = (blocks - 1) * queries; first >= 0; first -= queries) {
        tasks.push_back({sequence, kv_head, std::min(together, kv_heads - kv_head), first,
                         std::min(queries, sequence.num_queries - first)});
      }
    }
  }
  return tasks;
}

void clear_padding(const AttentionForwardArgs& args) {
  int64_t tokens = args.qkv.size(0), used = args.batch->offsets.data<int32_t>()[args.batch->num_sequences];
  if (used >= tokens) return;
  size_t row_bytes =
      static_cast<size_t>(args.shape.num_heads * args.shape.head_dim) * base::dtype_bytes(args.out.dtype());
  std::memset(args.out.data<char>() + static_cast<size_t>(used) * row_bytes, 0,
              static_cast<size_t>(tokens - used) * row_bytes);
  for (int64_t h = 0; args.lse && h < args.shape.num_heads; ++h) {
    std::fill(args.lse.data<float>() + h * tokens + used, args.lse.data<float>() + (h + 1) * tokens, 0.0f);
  }
}

}  // namespace

void attention_forward(Stream&, const AttentionForwardArgs& args) {
  clear_padding(args);
  const PairKernel* kernel = args.qkv.dtype() == base::DType::bf16 ? pair_kernel() : nullptr;
  std::vector<ForwardTask> tasks = cut_forward(args);
  base::parallel_for(static_cast<int64_t>(tasks.size()), 1, [&](int64_t begin, int64_t end) {
    PairKernelScope scope(kernel);
    for (int64_t i = begin; i < end; ++i) HWY_DYNAMIC_DISPATCH(attention_forward_task)(args, tasks[i], kernel);
  });
}

}  // namespace sinter::kernels::cpu
#endif

// Attention backward. A task is one sequence and key/value head: it owns the rows of dk and dv it writes and the dq of
// its query heads, so that no two threads add to the same number and the order of every sum is fixed.
//
// Queries come in blocks of kTileKeys too. Tiles are kept as (keys, queries): scores and probabilities come out
// transposed, which is what the products for dv and dk need as first factor, and a query's lse and delta are lanes of a
// vector.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/formats.h"
#include "kernels/cpu/highway_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_backward.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/attention-inl.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sinter::kernels::cpu {
namespace HWY_NAMESPACE {

// delta[h][t] = sum over D of dout * out.
template <class T>
void delta_rows(const AttentionBackwardArgs& args) {
  int64_t heads = args.shape.num_heads, tokens = args.qkv.size(0);
  size_t dim = static_cast<size_t>(args.shape.head_dim);
  for_each_row(tokens, heads * args.shape.head_dim, [&](int64_t t) {
    for (int64_t h = 0; h < heads; ++h) {
      const T* out = args.out.data<T>() + static_cast<size_t>(t * heads + h) * dim;
      const T* dout = args.dout.data<T>() + static_cast<size_t>(t * heads + h) * dim;
      Floats sum = zero();
      for_vectors(dim,
                  [&](size_t i, size_t n) HWY_ATTR { sum = hn::MulAdd(load_n(out + i, n), load_n(dout + i, n), sum); });
      args.delta.data<float>()[h * tokens + t] = sum_lanes(sum);
    }
  });
}

template <class Tiles, class T>
class Backward {
 public:
  using Unit = typename Tiles::Unit;
  Backward(const AttentionBackwardArgs& args, const BackwardTask& task, const PairKernel* kernel)
      : args_(args), shape_(args.shape), task_(task), kernel_(kernel) {
    count_ = task.sequence.num_queries;
    blocks_ = (count_ + kTileKeys - 1) / kTileKeys;
    dim_ = shape_.head_dim;
    padded_dim_ = round_up(dim_, Tiles::kDimMultiple);
    units_ = padded_dim_ / Tiles::kPerUnit;
    take_scratch();
  }

  void run() {
    int64_t group = shape_.num_heads / shape_.num_kv_heads, padded_rows = blocks_ * kTileKeys;
    std::fill(dkeys_, dkeys_ + padded_rows * padded_dim_, 0.0f);
    std::fill(dvalues_, dvalues_ + padded_rows * padded_dim_, 0.0f);
    for (head_ = task_.kv_head * group; head_ < (task_.kv_head + 1) * group; ++head_) {
      for (int64_t block = 0; block < blocks_; ++block) load_queries(block);
      std::fill(dqueries_, dqueries_ + padded_rows * padded_dim_, 0.0f);
      for (int64_t tile = 0; tile < blocks_; ++tile) {
        load_keys(tile);
        for (int64_t block = tile; block <= last_block(tile); ++block) visit(tile, block);
      }
      for (int64_t block = 0; block < blocks_; ++block) write_dqueries(block);
    }
    write_rows(dkeys_, shape_.num_heads + task_.kv_head);
    write_rows(dvalues_, shape_.num_heads + shape_.num_kv_heads + task_.kv_head);
  }

 private:
  static constexpr int64_t kFactorUnits = kTileKeys / Tiles::kPerUnit;
  static constexpr int64_t kSquare = kTileKeys * kTileKeys;

  void take_scratch() {
    int64_t rows = blocks_ * kTileKeys, tile = kTileKeys * units_;
    uint32_t* next = attention_scratch(4 * rows * units_ + 3 * rows * padded_dim_ + 2 * rows + kTileKeys * padded_dim_ +
                                       4 * tile + 7 * kSquare);
    auto units = [&](int64_t count) { return reinterpret_cast<Unit*>(std::exchange(next, next + count)); };
    auto floats = [&](int64_t count) { return reinterpret_cast<float*>(std::exchange(next, next + count)); };
    queries_t_ = units(rows * units_);
    douts_t_ = units(rows * units_);
    queries_ = units(rows * units_);
    douts_ = units(rows * units_);
    dqueries_ = floats(rows * padded_dim_);
    dkeys_ = floats(rows * padded_dim_);
    dvalues_ = floats(rows * padded_dim_);
    lse_ = floats(rows);
    delta_ = floats(rows);
    buffer_ = units(kTileKeys * padded_dim_);  // units of a tile, or floats of one
    stack_ = units(tile);
    keys_ = units(tile);
    keys_t_ = units(tile);
    values_ = units(tile);
    scores_ = floats(kSquare);
    dscores_ = floats(kSquare);
    factors_ = units(kSquare);
    dfactors_ = units(kSquare);
    dstack_ = units(kSquare);
    kept_ = floats(2 * kSquare);  // by key, and as drawn
  }

  int64_t rows_in(int64_t block) const { return std::min(kTileKeys, count_ - block * kTileKeys); }
  // The last block with a query that sees a key of this tile.
  int64_t last_block(int64_t tile) const {
    if (shape_.window == 0) return blocks_ - 1;
    int64_t last_key = tile * kTileKeys + rows_in(tile) - 1;
    return std::min(blocks_ - 1, (last_key + shape_.window - 1) / kTileKeys);
  }

  // Rows of one block from `column` of a (T, width) tensor into `out` (kTileKeys, units); zeros beyond the sequence.
  void load_block(const Tensor& source, int64_t block, int64_t column, Unit* out) {
    int64_t rows = rows_in(block), width = source.size(-1);
    const T* first = source.data<T>() + (task_.sequence.first_row + block * kTileKeys) * width + column;
    for (int64_t r = 0; r < rows; ++r) {
      Tiles::load_row(first + r * width, static_cast<size_t>(dim_), static_cast<size_t>(padded_dim_), out + r * units_);
    }
    std::fill(out + rows * units_, out + kTileKeys * units_, Unit{});
  }

  // Copies a block in both layouts: transposed (units, rows) and stacked (rows / kPerUnit, padded dim).
  void load_both(const Tensor& source, int64_t block, int64_t column, Unit* transposed, Unit* stacked) {
    load_block(source, block, column, buffer_);
    transpose_units(reinterpret_cast<const uint32_t*>(buffer_), kTileKeys, units_,
                    reinterpret_cast<uint32_t*>(transposed));
    const Unit* stack = Tiles::stack(buffer_, padded_dim_, stacked);
    if (stack != stacked) std::copy(stack, stack + kTileKeys * units_, stacked);
  }

  void load_queries(int64_t block) {
    int64_t at = block * kTileKeys * units_, rows = rows_in(block), tokens = args_.qkv.size(0);
    load_both(args_.qkv, block, head_ * dim_, queries_t_ + at, queries_ + at);
    load_both(args_.dout, block, head_ * dim_, douts_t_ + at, douts_ + at);
    int64_t first = head_ * tokens + task_.sequence.first_row + block * kTileKeys;
    for (int64_t r = 0; r < kTileKeys; ++r) {
      int64_t i = block * kTileKeys + r;
      // Rows beyond the sequence get probability 0.
      lse_[i] =
          r < rows ? args_.lse.template data<float>()[first + r] * kLog2E : std::numeric_limits<float>::infinity();
      delta_[i] = r < rows ? args_.delta.template data<float>()[first + r] : 0.0f;
    }
  }

  void load_keys(int64_t tile) {
    load_block(args_.qkv, tile, (shape_.num_heads + task_.kv_head) * dim_, keys_);
    load_block(args_.qkv, tile, (shape_.num_heads + shape_.num_kv_heads + task_.kv_head) * dim_, values_);
    const Unit* stack = Tiles::stack(keys_, padded_dim_, stack_);
    transpose_units(reinterpret_cast<const uint32_t*>(stack), kFactorUnits, padded_dim_,
                    reinterpret_cast<uint32_t*>(keys_t_));
  }

  // Adds to dv, dk and dq what one tile of keys and one block of queries have to do with each other.
  void visit(int64_t tile, int64_t block) {
    int64_t at = block * kTileKeys * units_;
    Tiles::multiply(kernel_, kTileKeys, kTileKeys, units_, keys_, units_, queries_t_ + at, kTileKeys, scores_,
                    kTileKeys, false);
    Tiles::multiply(kernel_, kTileKeys, kTileKeys, units_, values_, units_, douts_t_ + at, kTileKeys, dscores_,
                    kTileKeys, false);
    int64_t last_query = std::min(count_, (block + 1) * kTileKeys) - 1;
    bool is_edge = tile == block || (shape_.window > 0 && last_query - tile * kTileKeys >= shape_.window);
    if (shape_.dropout > 0) load_dropout(tile, block);
    if (is_edge) {
      differentiate<true>(tile, block);
    } else {
      differentiate<false>(tile, block);
    }
    const Unit* dstack = Tiles::stack(dfactors_, kTileKeys, dstack_);
    int64_t rows = tile * kTileKeys * padded_dim_;
    Tiles::multiply(kernel_, kTileKeys, padded_dim_, kFactorUnits, factors_, kFactorUnits, douts_ + at, padded_dim_,
                    dvalues_ + rows, padded_dim_, true);
    Tiles::multiply(kernel_, kTileKeys, padded_dim_, kFactorUnits, dfactors_, kFactorUnits, queries_ + at, padded_dim_,
                    dkeys_ + rows, padded_dim_, true);
    Tiles::multiply(kernel_, padded_dim_, kTileKeys, kFactorUnits, keys_t_, kFactorUnits, dstack, kTileKeys,
                    dqueries_ + block * kTileKeys * padded_dim_, kTileKeys, true);
  }

  // kept (keys, queries): what probabilities are multiplied by.
  void load_dropout(int64_t tile, int64_t block) {
    float* by_query = kept_ + kSquare;
    for (int64_t r = 0; r < kTileKeys; ++r) {
      dropout_factors(shape_, head_, task_.sequence.first_row + block * kTileKeys + r, tile * kTileKeys,
                      by_query + r * kTileKeys);
    }
    transpose_units(reinterpret_cast<const uint32_t*>(by_query), kTileKeys, kTileKeys,
                    reinterpret_cast<uint32_t*>(kept_));
  }

  struct Gradient {
    Floats probability, dscore;
  };

  // One vector of queries for one key. On an edge some of them do not see the key.
  template <bool kIsEdge>
  HWY_INLINE Gradient differentiate_vector(int64_t key, int64_t query, int64_t at) {
    constexpr bool kIsShort = Tiles::kPerUnit == 2;
    Floats exponent = hn::MulSub(load(scores_ + at), set(shape_.scale * kLog2E), load(lse_ + query));
    Floats p = exp2_nonpositive<kIsShort>(exponent);
    if constexpr (kIsEdge) {
      // how far each query stands behind the key: seen when 0 <= distance < window
      auto distance = hn::Add(hn::Iota(kInts, 0), hn::Set(kInts, static_cast<int32_t>(query - key)));
      auto sees = hn::Gt(distance, hn::Set(kInts, -1));
      if (shape_.window > 0)
        sees = hn::And(sees, hn::Lt(distance, hn::Set(kInts, static_cast<int32_t>(shape_.window))));
      p = hn::IfThenElseZero(hn::RebindMask(kFloats, sees), p);
    }
    Floats dp = load(dscores_ + at), dropped = p;
    if (shape_.dropout > 0) {
      Floats kept = load(kept_ + at);
      dp = hn::Mul(dp, kept);
      dropped = hn::Mul(p, kept);
    }
    return {dropped, hn::Mul(hn::Mul(p, hn::Sub(dp, load(delta_ + query))), set(shape_.scale))};
  }

  // Scores and their cotangents to probabilities and gradients of scores, as factors of the next products.
  template <bool kIsEdge>
  void differentiate(int64_t tile, int64_t block) {
    for (int64_t j = 0; j < kTileKeys; ++j) {
      int64_t key = tile * kTileKeys + j;
      Unit* p = factors_ + j * kFactorUnits;
      Unit* d = dfactors_ + j * kFactorUnits;
      for (size_t i = 0; i < kTileKeys; i += 2 * kLanes) {
        int64_t query = block * kTileKeys + static_cast<int64_t>(i), at = j * kTileKeys + static_cast<int64_t>(i);
        constexpr int64_t kStep = static_cast<int64_t>(kLanes);
        Gradient low = differentiate_vector<kIsEdge>(key, query, at);
        Gradient high = differentiate_vector<kIsEdge>(key, query + kStep, at + kStep);
        Tiles::store_factors(low.probability, high.probability, p + i / Tiles::kPerUnit);
        Tiles::store_factors(low.dscore, high.dscore, d + i / Tiles::kPerUnit);
      }
    }
  }

  void store_row(const float* row, int64_t token, int64_t head) {
    T* out = args_.dqkv.template data<T>() + token * args_.dqkv.size(-1) + head * dim_;
    for_vectors(static_cast<size_t>(dim_), [&](size_t i, size_t n) HWY_ATTR { store_n(load(row + i), out + i, n); });
  }

  void write_dqueries(int64_t block) {
    float* rows = reinterpret_cast<float*>(buffer_);
    transpose_units(reinterpret_cast<const uint32_t*>(dqueries_ + block * kTileKeys * padded_dim_), padded_dim_,
                    kTileKeys, reinterpret_cast<uint32_t*>(rows));
    for (int64_t r = 0; r < rows_in(block); ++r) {
      store_row(rows + r * padded_dim_, task_.sequence.first_row + block * kTileKeys + r, head_);
    }
  }

  void write_rows(const float* rows, int64_t head) {
    for (int64_t r = 0; r < count_; ++r) store_row(rows + r * padded_dim_, task_.sequence.first_row + r, head);
  }

  const AttentionBackwardArgs& args_;
  const AttentionShape& shape_;
  const BackwardTask& task_;
  const PairKernel* kernel_;
  int64_t count_, blocks_, dim_, padded_dim_, units_, head_ = 0;
  // Of all blocks of the sequence, for the current head:
  Unit *queries_t_, *douts_t_;  // (blocks, units, rows)
  Unit *queries_, *douts_;      // (blocks, rows / kPerUnit, padded dim)
  float* dqueries_;             // (blocks, padded dim, rows)
  float *dkeys_, *dvalues_;     // (blocks, rows, padded dim), over all heads of the group
  float *lse_, *delta_;         // (blocks, rows); lse in log2
  // Of the current tile and block:
  Unit *buffer_, *stack_, *dstack_;
  Unit *keys_, *values_;       // (keys, units)
  Unit* keys_t_;               // (padded dim, keys / kPerUnit)
  float *scores_, *dscores_;   // (keys, queries)
  Unit *factors_, *dfactors_;  // (keys, queries / kPerUnit): probabilities, gradients of scores
  float* kept_;                // (keys, queries): dropout
};

void attention_delta(const AttentionBackwardArgs& args) {
  with_format(args.qkv.dtype(), "attention_backward", [&]<class T>(T) { delta_rows<T>(args); });
}

void attention_backward_task(const AttentionBackwardArgs& args, const BackwardTask& task, const PairKernel* kernel) {
#if HWY_TARGET <= HWY_AVX3
  if (kernel) return Backward<PairTiles, bf16>(args, task, kernel).run();
#endif
  with_format(args.qkv.dtype(), "attention_backward",
              [&]<class T>(T) { Backward<FloatTiles, T>(args, task, nullptr).run(); });
}

}  // namespace HWY_NAMESPACE
}  // namespace sinter::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sinter::kernels::cpu {

HWY_EXPORT(attention_delta);
HWY_EXPORT(attention_backward_task);

void attention_backward(Stream&, const AttentionBackwardArgs& args) {
  HWY_DYNAMIC_DISPATCH(attention_delta)(args);
  int64_t tokens = args.qkv.size(0), used = args.batch->offsets.data<int32_t>()[args.batch->num_sequences];
  size_t row_bytes = static_cast<size_t>(args.dqkv.size(-1)) * base::dtype_bytes(args.dqkv.dtype());
  std::memset(args.dqkv.data<char>() + static_cast<size_t>(used) * row_bytes, 0,
              static_cast<size_t>(tokens - used) * row_bytes);

  const PairKernel* kernel = args.qkv.dtype() == base::DType::bf16 ? pair_kernel() : nullptr;
  std::vector<BackwardTask> tasks;
  for (const SequenceRows& sequence : sequences_of(*args.batch, false)) {
    if (sequence.num_queries == 0) continue;
    for (int64_t kv_head = 0; kv_head < args.shape.num_kv_heads; ++kv_head) tasks.push_back({sequence, kv_head});
  }
  // Longest first, so that threads end together.
  std::stable_sort(tasks.begin(), tasks.end(), [](const BackwardTask& a, const BackwardTask& b) {
    return a.sequence.num_queries > b.sequence.num_queries;
  });
  base::parallel_for(static_cast<int64_t>(tasks.size()), 1, [&](int64_t begin, int64_t end) {
    PairKernelScope scope(kernel);
    for (int64_t i = begin; i < end; ++i) HWY_DYNAMIC_DISPATCH(attention_backward_task)(args, tasks[i], kernel);
  });
}

}  // namespace sinter::kernels::cpu
#endif

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

#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/formats.h"
#include "kernels/cpu/highway_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention/attention_backward.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/attention/attention-inl.h"
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
      : args_(args), shape_(args.shape), task_(task), kernel_(kernel), group_(shape_.num_heads / shape_.num_kv_heads) {
    count_ = task.sequence.num_queries;
    blocks_ = (count_ + kTileKeys - 1) / kTileKeys;
    dim_ = shape_.head_dim;
    padded_dim_ = round_up(dim_, Tiles::kDimMultiple);
    units_ = padded_dim_ / Tiles::kPerUnit;
    take_scratch();
  }

  void run() {
    int64_t last_head = (task_.kv_head + 1) * group_ - 1;
    for (head_ = task_.kv_head * group_; head_ <= last_head; ++head_) {
      loaded_ = 0;
      for (int64_t tile = 0; tile < blocks_; ++tile) {
        load_keys(tile);
        for (int64_t block = tile; block <= last_block(tile); ++block) visit(tile, block);
        // No later key is seen by this tile's queries.
        write_dqueries(tile);
        if (head_ < last_head) continue;
        write_rows(dkeys_ + sums_at(tile), tile, key_column());
        write_rows(dvalues_ + sums_at(tile), tile, value_column());
      }
    }
  }

 private:
  static constexpr int64_t kFactorUnits = kTileKeys / Tiles::kPerUnit;
  static constexpr int64_t kSquare = kTileKeys * kTileKeys;

  void take_scratch() {
    int64_t rows = blocks_ * kTileKeys, tile = kTileKeys * units_;
    int64_t key_rows = shares_keys() ? rows : kTileKeys;
    uint32_t* next = attention_scratch(4 * rows * units_ + (rows + 2 * key_rows) * padded_dim_ + 2 * rows +
                                       kTileKeys * padded_dim_ + 4 * tile + 7 * kSquare);
    auto units = [&](int64_t count) { return reinterpret_cast<Unit*>(std::exchange(next, next + count)); };
    auto floats = [&](int64_t count) { return reinterpret_cast<float*>(std::exchange(next, next + count)); };
    queries_t_ = units(rows * units_);
    douts_t_ = units(rows * units_);
    queries_ = units(rows * units_);
    douts_ = units(rows * units_);
    dqueries_ = floats(rows * padded_dim_);
    dkeys_ = floats(key_rows * padded_dim_);
    dvalues_ = floats(key_rows * padded_dim_);
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

  // Whether several query heads add to the same dk and dv, which are then kept for all tiles.
  bool shares_keys() const { return group_ > 1; }
  int64_t sums_at(int64_t tile) const { return shares_keys() ? tile * kTileKeys * padded_dim_ : 0; }
  int64_t rows_in(int64_t block) const { return std::min(kTileKeys, count_ - block * kTileKeys); }
  // The last block with a query that sees a key of this tile.
  int64_t last_block(int64_t tile) const {
    if (shape_.window == 0) return blocks_ - 1;
    int64_t last_key = tile * kTileKeys + rows_in(tile) - 1;
    return std::min(blocks_ - 1, (last_key + shape_.window - 1) / kTileKeys);
  }

  int64_t key_column() const { return (shape_.num_heads + task_.kv_head) * dim_; }
  int64_t value_column() const { return key_column() + shape_.num_kv_heads * dim_; }

  // What is copied or written soon, row by row: rows lie far apart, where the hardware does not guess them, and a burst
  // of requests would wait for the few that a core has under way. So each is asked for between other work.
  struct Ahead {
    const T* row;
    int64_t stride;
  };
  void plan_ahead(int64_t tile, int64_t block) {
    num_ahead_ = 0;
    auto add = [&](const Tensor& tensor, int64_t of_block, int64_t column) {
      if (rows_in(of_block) < kTileKeys) return;  // none, or the last few
      int64_t row = task_.sequence.first_row + of_block * kTileKeys, width = tensor.size(-1);
      ahead_[num_ahead_++] = {tensor.data<T>() + row * width + column, width};
    };
    if (block < last_block(tile) && block + 1 == loaded_) {
      add(args_.qkv, block + 1, head_ * dim_);
      add(args_.dout, block + 1, head_ * dim_);
    }
    if (block == tile) {
      add(args_.qkv, tile + 1, key_column());
      add(args_.qkv, tile + 1, value_column());
    }
    if (block == last_block(tile)) {
      add(args_.dqkv, tile, head_ * dim_);
      add(args_.dqkv, tile, key_column());
      add(args_.dqkv, tile, value_column());
    }
  }
  HWY_INLINE void ask_ahead(int64_t r) {
    for (int i = 0; i < num_ahead_; ++i) ask_for(ahead_[i].row + r * ahead_[i].stride, dim_);
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
    load_block(args_.qkv, tile, key_column(), keys_);
    load_block(args_.qkv, tile, value_column(), values_);
    const Unit* stack = Tiles::stack(keys_, padded_dim_, stack_);
    transpose_units(reinterpret_cast<const uint32_t*>(stack), kFactorUnits, padded_dim_,
                    reinterpret_cast<uint32_t*>(keys_t_));
  }

  // Adds to dv, dk and dq what one tile of keys and one block of queries have to do with each other.
  void visit(int64_t tile, int64_t block) {
    bool adds_to_queries = block != loaded_;
    if (!adds_to_queries) load_queries(loaded_++);
    plan_ahead(tile, block);
    multiply_scores(tile, block);
    int64_t last_query = std::min(count_, (block + 1) * kTileKeys) - 1;
    bool is_edge = tile == block || (shape_.window > 0 && last_query - tile * kTileKeys >= shape_.window);
    if (shape_.dropout > 0) {
      load_dropout(tile, block);
      is_edge ? differentiate<true, true>(tile, block) : differentiate<false, true>(tile, block);
    } else {
      is_edge ? differentiate<true, false>(tile, block) : differentiate<false, false>(tile, block);
    }
    multiply_gradients(tile, block, adds_to_queries);
  }

  // On the diagonal the second half of the keys is seen by the second half of the queries alone: products go by halves
  // there, and what is left out is nowhere read.
  static int64_t keys_together(int64_t tile, int64_t block) { return tile == block ? kTileKeys / 2 : kTileKeys; }

  void multiply_scores(int64_t tile, int64_t block) {
    int64_t at = block * kTileKeys * units_, step = keys_together(tile, block);
    for (int64_t first = 0; first < kTileKeys; first += step) {
      int64_t from = first * units_, to = first * kTileKeys + first, queries = kTileKeys - first;
      Tiles::multiply(kernel_, step, queries, units_, keys_ + from, units_, queries_t_ + at + first, kTileKeys,
                      scores_ + to, kTileKeys, false);
      Tiles::multiply(kernel_, step, queries, units_, values_ + from, units_, douts_t_ + at + first, kTileKeys,
                      dscores_ + to, kTileKeys, false);
    }
  }

  void multiply_gradients(int64_t tile, int64_t block, bool adds_to_queries) {
    bool adds_to_keys = block > tile || head_ > task_.kv_head * group_;
    const Unit* dstack = Tiles::stack(dfactors_, kTileKeys, dstack_);
    int64_t at = block * kTileKeys * units_, step = keys_together(tile, block);
    for (int64_t first = 0; first < kTileKeys; first += step) {
      int64_t unseen = first / Tiles::kPerUnit, from = first * kFactorUnits + unseen, below = at + unseen * padded_dim_;
      int64_t to = sums_at(tile) + first * padded_dim_;
      Tiles::multiply(kernel_, step, padded_dim_, kFactorUnits - unseen, factors_ + from, kFactorUnits, douts_ + below,
                      padded_dim_, dvalues_ + to, padded_dim_, adds_to_keys);
      Tiles::multiply(kernel_, step, padded_dim_, kFactorUnits - unseen, dfactors_ + from, kFactorUnits,
                      queries_ + below, padded_dim_, dkeys_ + to, padded_dim_, adds_to_keys);
      Tiles::multiply(kernel_, padded_dim_, step, (first + step) / Tiles::kPerUnit, keys_t_, kFactorUnits,
                      dstack + first, kTileKeys, dqueries_ + block * kTileKeys * padded_dim_ + first, kTileKeys,
                      adds_to_queries);
    }
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
  // Copies of what every vector needs: members would be read again after each store.
  struct Tile {
    Floats scale, log2_scale;
    const float *scores, *dscores, *kept;
    int32_t window;
  };

  // kLanes queries for one key, which the first of them stands `distance` behind. On an edge some do not see the key.
  template <bool kIsEdge, bool kDrops>
  static HWY_INLINE Gradient differentiate_vector(const Tile& tile, size_t at, int64_t distance, Floats lse,
                                                  Floats delta) {
    constexpr bool kIsShort = Tiles::kPerUnit == 2;
    Floats p = exp2_nonpositive<kIsShort>(hn::MulSub(load(tile.scores + at), tile.log2_scale, lse));
    if constexpr (kIsEdge) {
      auto distances = hn::Add(hn::Iota(kInts, 0), hn::Set(kInts, static_cast<int32_t>(distance)));
      auto sees = hn::Gt(distances, hn::Set(kInts, -1));  // seen when 0 <= distance < window
      if (tile.window > 0) sees = hn::And(sees, hn::Lt(distances, hn::Set(kInts, tile.window)));
      p = hn::IfThenElseZero(hn::RebindMask(kFloats, sees), p);
    }
    Floats dp = load(tile.dscores + at), dropped = p;
    if constexpr (kDrops) {
      Floats kept = load(tile.kept + at);
      dp = hn::Mul(dp, kept);
      dropped = hn::Mul(p, kept);
    }
    return {dropped, hn::Mul(hn::Mul(p, hn::Sub(dp, delta)), tile.scale)};
  }

  // Scores and their cotangents to probabilities and gradients of scores, as factors of the next products.
  template <bool kIsEdge, bool kDrops>
  void differentiate(int64_t tile, int64_t block) {
    constexpr int64_t kStep = static_cast<int64_t>(kLanes);
    const Tile here{
        set(shape_.scale), set(shape_.scale * kLog2E), scores_, dscores_, kept_, static_cast<int32_t>(shape_.window)};
    const float *lse = lse_ + block * kTileKeys, *delta = delta_ + block * kTileKeys;
    Unit *p = factors_, *d = dfactors_;
    for (int64_t j = 0; j < kTileKeys; ++j, p += kFactorUnits, d += kFactorUnits) {
      ask_ahead(j);
      for (size_t i = 0; i < kTileKeys; i += 2 * kLanes) {
        size_t at = static_cast<size_t>(j * kTileKeys) + i;
        int64_t distance = (block - tile) * kTileKeys - j + static_cast<int64_t>(i);
        Gradient low = differentiate_vector<kIsEdge, kDrops>(here, at, distance, load(lse + i), load(delta + i));
        Gradient high = differentiate_vector<kIsEdge, kDrops>(here, at + kLanes, distance + kStep,
                                                              load(lse + i + kLanes), load(delta + i + kLanes));
        Tiles::store_factors(low.probability, high.probability, p + i / Tiles::kPerUnit);
        Tiles::store_factors(low.dscore, high.dscore, d + i / Tiles::kPerUnit);
      }
    }
  }

  void store_row(const float* row, int64_t token, int64_t column) {
    T* out = args_.dqkv.template data<T>() + token * args_.dqkv.size(-1) + column;
    for_vectors(static_cast<size_t>(dim_), [&](size_t i, size_t n) HWY_ATTR { store_n(load(row + i), out + i, n); });
  }

  void write_dqueries(int64_t block) {
    float* rows = reinterpret_cast<float*>(buffer_);
    transpose_units(reinterpret_cast<const uint32_t*>(dqueries_ + block * kTileKeys * padded_dim_), padded_dim_,
                    kTileKeys, reinterpret_cast<uint32_t*>(rows));
    write_rows(rows, block, head_ * dim_);
  }

  void write_rows(const float* rows, int64_t tile, int64_t column) {
    for (int64_t r = 0; r < rows_in(tile); ++r) {
      store_row(rows + r * padded_dim_, task_.sequence.first_row + tile * kTileKeys + r, column);
    }
  }

  const AttentionBackwardArgs& args_;
  const AttentionShape& shape_;
  const BackwardTask& task_;
  const PairKernel* kernel_;
  int64_t group_, count_, blocks_, dim_, padded_dim_, units_, head_ = 0;
  Ahead ahead_[7];
  int num_ahead_ = 0;
  int64_t loaded_ = 0;  // blocks of queries that are there
  // Of all blocks of the sequence, for the current head:
  Unit *queries_t_, *douts_t_;  // (blocks, units, rows)
  Unit *queries_, *douts_;      // (blocks, rows / kPerUnit, padded dim)
  float* dqueries_;             // (blocks, padded dim, rows)
  float *lse_, *delta_;         // (blocks, rows); lse in log2
  // Of the current tile and block:
  Unit *buffer_, *stack_, *dstack_;
  Unit *keys_, *values_;       // (keys, units)
  Unit* keys_t_;               // (padded dim, keys / kPerUnit)
  float *dkeys_, *dvalues_;    // (keys, padded dim); where heads share keys (tiles, keys, padded dim), over all heads
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

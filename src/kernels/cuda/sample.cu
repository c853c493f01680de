// Choosing tokens where the logits lie: a block a row. Top-k and top-p are found without sorting: a threshold in the
// order (value, then lower token), digit by digit from histograms of counts or of probability.
#include <climits>

#include "kernels/cuda/common.cuh"

namespace sinter::kernels::cuda {
namespace {

constexpr int kThreads = 1024, kBins = 256, kDigitBits = 8;

struct Params {
  float* logits;
  const SampleRow* rows;
  LogitEdit* edits;
  const uint32_t* masks;
  int32_t *tokens, *ranks;
  int vocab, stride, mask_words;
};

// Best of a block: the largest score, of equals the lowest token.
template <class Score>
struct Best {
  Score score;
  int token;
  __device__ __forceinline__ void take(Score s, int t) {
    if (s > score || (s == score && t < token)) score = s, token = t;
  }
};
template <class Score>
__device__ Best<Score> best_of_block(Best<Score> own, Best<Score>* shared) {
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) {
    own.take(__shfl_xor_sync(0xffffffffu, own.score, step), __shfl_xor_sync(0xffffffffu, own.token, step));
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = own;
  __syncthreads();
  own = shared[threadIdx.x % 32];
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) {
    own.take(__shfl_xor_sync(0xffffffffu, own.score, step), __shfl_xor_sync(0xffffffffu, own.token, step));
  }
  return own;
}

// One row's candidates.
struct RowView {
  const float* logits;
  const uint32_t* mask;
  float top, scale;
  int vocab;

  __device__ __forceinline__ bool may_come(int t, float logit) const {
    return logit != -INFINITY && (!mask || ((mask[t / 32] >> (t % 32)) & 1u));
  }
  __device__ __forceinline__ float value(float logit) const { return (logit - top) * scale; }
  // Grows with the value, and with a lower token among equals. No two are equal.
  __device__ __forceinline__ uint64_t order(int t, float value) const {
    const uint32_t bits = __float_as_uint(value);
    const uint32_t rising = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return uint64_t{rising} << 32 | ~static_cast<uint32_t>(t);
  }
};

struct Histogram {
  unsigned long long mass[kBins];
  unsigned count[kBins];
  uint64_t prefix;
  double before;  // of what lies above the prefix: tokens, or their probability
  bool is_done;
};

__device__ __forceinline__ unsigned long long mass_of(float value) {  // 2^40: the likeliest one's
  return static_cast<unsigned long long>(expf(value) * 0x1p40f);
}

// The order of the last candidate kept when the likeliest are taken until their count, or probability, reaches
// `target`; only those from `least` on are looked at.
template <bool kByMass>
__device__ uint64_t find_threshold(const RowView& row, uint64_t least, double target, Histogram& h) {
  if (threadIdx.x == 0) h.prefix = 0, h.before = 0, h.is_done = false;
  for (int shift = 64 - kDigitBits; shift >= 0; shift -= kDigitBits) {
    for (int i = threadIdx.x; i < kBins; i += kThreads) h.mass[i] = 0, h.count[i] = 0;
    __syncthreads();
    const uint64_t prefix = h.prefix;
    for (int t = threadIdx.x; t < row.vocab; t += kThreads) {
      const float logit = row.logits[t];
      if (!row.may_come(t, logit)) continue;
      const float value = row.value(logit);
      const uint64_t order = row.order(t, value);
      if (order < least || (shift < 64 - kDigitBits && order >> (shift + kDigitBits) != prefix)) continue;
      const int bin = static_cast<int>(order >> shift & (kBins - 1));
      atomicAdd(&h.count[bin], 1u);
      if (kByMass) atomicAdd(&h.mass[bin], mass_of(value));
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      double before = h.before;
      int found = -1;
      for (int bin = kBins - 1; bin >= 0; --bin) {
        if (h.count[bin] == 0) continue;
        found = bin;
        const double own = kByMass ? static_cast<double>(h.mass[bin]) : h.count[bin];
        if (before + own >= target) break;
        before += own;
      }
      const double own = found < 0 ? 0 : kByMass ? static_cast<double>(h.mass[found]) : h.count[found];
      // Sums that fall short by rounding keep all.
      const bool keeps_all = found < 0 || before >= target || (!kByMass && before + own == target);
      h.is_done = keeps_all || h.count[found] == 1;
      h.prefix = found < 0 ? 0 : prefix << kDigitBits | static_cast<uint64_t>(found);
      h.before = before;
      if (found < 0) h.prefix = least >> shift;
    }
    __syncthreads();
    if (h.is_done || shift == 0) {
      const uint64_t threshold = h.prefix << shift;
      __syncthreads();
      return threshold > least ? threshold : least;
    }
  }
  return least;
}

__device__ double total_mass(const RowView& row, uint64_t least, Histogram& h) {
  if (threadIdx.x == 0) h.mass[0] = 0;
  __syncthreads();
  unsigned long long own = 0;
  for (int t = threadIdx.x; t < row.vocab; t += kThreads) {
    const float logit = row.logits[t];
    if (!row.may_come(t, logit)) continue;
    const float value = row.value(logit);
    if (row.order(t, value) >= least) own += mass_of(value);
  }
  atomicAdd(&h.mass[0], own);
  __syncthreads();
  const double total = static_cast<double>(h.mass[0]);
  __syncthreads();
  return total;
}

__device__ __forceinline__ uint64_t noise_bits(const SampleRow& row, int token) {
  const uint4 block = philox_block(row.seed, row.stream, static_cast<uint64_t>(token));
  return (uint64_t{block.y} << 32 | block.x) >> 12;
}
__device__ __forceinline__ double gumbel(uint64_t bits) {
  const double u = (static_cast<double>(bits) + 0.5) * 0x1p-52;
  return -log(-log(u));
}
// The same to about 1e-4: u near 1 by its distance from 1.
__device__ __forceinline__ float rough_gumbel(uint64_t bits) {
  constexpr uint64_t kHalf = uint64_t{1} << 51, kAll = uint64_t{1} << 52;
  const float e = bits >= kHalf ? -log1pf(-((static_cast<float>(kAll - bits) - 0.5f) * 0x1p-52f))
                                : -logf((static_cast<float>(bits) + 0.5f) * 0x1p-52f);
  return -logf(e);
}

__device__ int draw(const RowView& row, const SampleRow& s, uint64_t least, int top_token, Best<double>* shared) {
  Best<double> best{gumbel(noise_bits(s, top_token)), top_token};
  const float floor = s.min_p > 0 ? logf(s.min_p) : -INFINITY;
  for (int t = threadIdx.x; t < row.vocab; t += kThreads) {
    const float logit = row.logits[t];
    if (!row.may_come(t, logit)) continue;
    const float value = row.value(logit);
    if (value < floor || row.order(t, value) < least) continue;
    if (static_cast<double>(value) + 37.0 < best.score) continue;  // no noise is larger
    const uint64_t bits = noise_bits(s, t);
    if (static_cast<double>(value + rough_gumbel(bits)) + 1e-2 < best.score) continue;
    best.take(static_cast<double>(value) + gumbel(bits), t);
  }
  return best_of_block(best, shared).token;
}

__global__ void __launch_bounds__(kThreads) sample_kernel(const Params p) {
  __shared__ Histogram histogram;
  __shared__ Best<float> best_floats[32];
  __shared__ Best<double> best_doubles[32];
  let_next_begin();
  wait_for_previous();
  const int r = blockIdx.x;
  const SampleRow s = p.rows[r];
  if (!s.is_used) {
    if (threadIdx.x == 0) p.tokens[r] = -1;
    if (threadIdx.x == 0 && p.ranks) p.ranks[r] = 0;
    return;
  }
  float* logits = p.logits + int64_t{r} * p.stride;
  bool is_bad = false;
  Best<float> raw{-INFINITY, INT_MAX};
  for (int t = threadIdx.x; t < p.vocab; t += kThreads) {
    const float x = logits[t];
    is_bad |= isnan(x);
    raw.take(x, t);
  }
  raw = best_of_block(raw, best_floats);
  if (__syncthreads_or(is_bad) || !isfinite(raw.score)) {
    if (threadIdx.x == 0) p.tokens[r] = -2;
    if (threadIdx.x == 0 && p.ranks) p.ranks[r] = 0;
    return;
  }
  // Edits change the row and keep what was there, to put it back.
  for (int i = threadIdx.x; i < s.num_edits; i += kThreads) {
    LogitEdit& e = p.edits[s.first_edit + i];
    if (e.token >= p.vocab) continue;
    const float old = logits[e.token];
    float x = old + e.bias;
    x = x > 0 ? x / e.divisor : x * e.divisor;
    logits[e.token] = x - e.loss;
    e.bias = old;
  }
  __syncthreads();
  RowView row{logits, s.mask >= 0 ? p.masks + int64_t{s.mask} * p.mask_words : nullptr, 0, 1, p.vocab};
  Best<float> best = raw;
  if (s.num_edits > 0 || row.mask) {
    best = {-INFINITY, INT_MAX};
    for (int t = threadIdx.x; t < p.vocab; t += kThreads) {
      const float x = logits[t];
      if (row.may_come(t, x)) best.take(x, t);
    }
    best = best_of_block(best, best_floats);
  }
  int token = best.score == -INFINITY ? -1 : best.token;
  if (token >= 0 && s.temperature != 0 && s.top_k != 1) {
    row.top = best.score;
    row.scale = 1.0f / s.temperature;
    uint64_t least = 0;
    if (s.top_k > 0 && s.top_k < p.vocab) least = find_threshold<false>(row, least, s.top_k, histogram);
    if (s.top_p < 1) {
      const double total = total_mass(row, least, histogram);
      least = find_threshold<true>(row, least, static_cast<double>(s.top_p) * total, histogram);
    }
    token = draw(row, s, least, token, best_doubles);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < s.num_edits; i += kThreads) {
    const LogitEdit& e = p.edits[s.first_edit + i];
    if (e.token < p.vocab) logits[e.token] = e.bias;
  }
  if (threadIdx.x == 0) p.tokens[r] = token;
  if (!p.ranks) return;
  __syncthreads();
  int rank = 0;
  if (token >= 0) {
    const float own = logits[token];
    for (int t = threadIdx.x; t < p.stride; t += kThreads) rank += logits[t] > own || (logits[t] == own && t < token);
  }
  __shared__ int total;
  if (threadIdx.x == 0) total = 0;
  __syncthreads();
  atomicAdd(&total, rank);
  __syncthreads();
  if (threadIdx.x == 0) p.ranks[r] = total;
}

}  // namespace

void sample(Stream& stream, const SampleArgs& args) {
  const int64_t rows = args.logits.rows(), stride = args.logits.size(-1);
  if (rows == 0) return;
  SINTER_CHECK(args.logits.dtype() == base::DType::f32 && stride < INT_MAX && args.vocab <= stride,
               "[sample] logits in {} over {} of {} tokens; expected f32", base::dtype_name(args.logits.dtype()),
               args.vocab, stride);
  const Params p{args.logits.data<float>(),
                 args.rows.data<SampleRow>(),
                 args.edits.data<LogitEdit>(),
                 args.masks.data<uint32_t>(),
                 args.tokens.data<int32_t>(),
                 args.ranks ? args.ranks.data<int32_t>() : nullptr,
                 static_cast<int>(args.vocab),
                 static_cast<int>(stride),
                 args.masks ? static_cast<int>(args.masks.size(-1)) : 0};
  launch_dependent(stream, sample_kernel, dim3(static_cast<unsigned>(rows)), kThreads, 0, p);
}

}  // namespace sinter::kernels::cuda

// Mixture of experts: routing, sorting slots by expert, moving rows there and back. No launch depends on an expert.
#include "kernels/cuda/common.cuh"

namespace sinter::kernels::cuda {
namespace {

constexpr int kMaxPerLane = 16;  // experts a lane holds: up to 512 experts
constexpr int kWarps = 4;

// A warp a token: expert e lives in lane e % 32.
template <class T>
__global__ void __launch_bounds__(32 * kWarps)
    router_forward_kernel(const T* logits, float* probs, int32_t* experts, float* weights, int64_t tokens,
                          int num_experts, int chosen, bool renormalise) {
  int64_t t = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  int lane = threadIdx.x % 32;
  if (t >= tokens) return;
  float logit[kMaxPerLane], p[kMaxPerLane], largest = -INFINITY, sum = 0;
#pragma unroll
  for (int i = 0; i < kMaxPerLane; ++i) {
    int e = i * 32 + lane;
    logit[i] = e < num_experts ? to_float(logits[t * num_experts + e]) : -INFINITY;
    largest = fmaxf(largest, logit[i]);
  }
  largest = warp_max(largest);
#pragma unroll
  for (int i = 0; i < kMaxPerLane; ++i) {
    p[i] = i * 32 + lane < num_experts ? expf(logit[i] - largest) : 0.0f;
    sum += p[i];
  }
  sum = warp_sum(sum);
#pragma unroll
  for (int i = 0; i < kMaxPerLane; ++i) {
    p[i] /= sum;
    if (i * 32 + lane < num_experts) probs[t * num_experts + i * 32 + lane] = p[i];
  }
  // The k largest logits, lower experts first among equals; a taken expert is marked in a bit mask.
  uint32_t taken = 0;
  float total = 0, mine = 0;  // lane j keeps the probability of choice j (k <= 32)
  for (int j = 0; j < chosen; ++j) {
    float best = -INFINITY, best_p = 0;
    int best_e = num_experts;
#pragma unroll
    for (int i = 0; i < kMaxPerLane; ++i) {
      int e = i * 32 + lane;
      bool better = e < num_experts && !(taken >> i & 1) && (best_e == num_experts || logit[i] > best);
      if (better) {
        best = logit[i];
        best_p = p[i];
        best_e = e;
      }
    }
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) {
      float other = __shfl_xor_sync(0xffffffffu, best, step), other_p = __shfl_xor_sync(0xffffffffu, best_p, step);
      int other_e = __shfl_xor_sync(0xffffffffu, best_e, step);
      bool take =
          other_e < num_experts && (best_e == num_experts || other > best || (other == best && other_e < best_e));
      if (take) {
        best = other;
        best_p = other_p;
        best_e = other_e;
      }
    }
    if (best_e % 32 == lane) taken |= 1u << (best_e / 32);
    total += best_p;
    if (lane == j) mine = best_p;
    if (lane == 0) experts[t * chosen + j] = best_e;
  }
  if (lane < chosen) weights[t * chosen + lane] = renormalise ? mine / total : mine;
}

template <class T>
__global__ void __launch_bounds__(32 * kWarps)
    router_backward_kernel(const float* dweights, const float* probs, const int32_t* experts, const float* weights,
                           const int32_t* offsets, const float* balance_scale, T* dlogits, int64_t tokens,
                           int num_experts, int chosen, bool renormalised) {
  int64_t t = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  int lane = threadIdx.x % 32;
  if (t >= tokens) return;
  float p[kMaxPerLane], dp[kMaxPerLane];
  float count = static_cast<float>(tokens);
  float balance = balance_scale ? balance_scale[0] * static_cast<float>(num_experts) / (count * count) : 0.0f;
#pragma unroll
  for (int i = 0; i < kMaxPerLane; ++i) {
    int e = i * 32 + lane;
    p[i] = e < num_experts ? probs[t * num_experts + e] : 0.0f;
    dp[i] = e < num_experts && balance_scale ? balance * static_cast<float>(offsets[e + 1] - offsets[e]) : 0.0f;
  }
  float total = 0, dot = 0;
  for (int j = 0; j < chosen; ++j) {
    total += probs[t * num_experts + experts[t * chosen + j]];
    dot += dweights[t * chosen + j] * weights[t * chosen + j];
  }
  for (int j = 0; j < chosen; ++j) {
    int expert = experts[t * chosen + j];
    float dw = dweights[t * chosen + j];
    float d = renormalised ? (dw - dot) / total : dw;
#pragma unroll
    for (int i = 0; i < kMaxPerLane; ++i) dp[i] += i * 32 + lane == expert ? d : 0.0f;
  }
  float mean = 0;
#pragma unroll
  for (int i = 0; i < kMaxPerLane; ++i) mean += p[i] * dp[i];
  mean = warp_sum(mean);
#pragma unroll
  for (int i = 0; i < kMaxPerLane; ++i) {
    int e = i * 32 + lane;
    if (e < num_experts) dlogits[t * num_experts + e] = from_float<T>(p[i] * (dp[i] - mean));
  }
}

constexpr int kBalanceBlocks = 128;

// Partial sums of f_e * p[t, e] over all elements.
__global__ void __launch_bounds__(256)
    balance_loss_kernel(const float* probs, const int32_t* offsets, int64_t tokens, int num_experts, float* partials) {
  __shared__ float shared[8];
  float sum = 0;
  int64_t count = tokens * num_experts;
  for (int64_t i = int64_t{blockIdx.x} * 256 + threadIdx.x; i < count; i += kBalanceBlocks * 256) {
    int e = static_cast<int>(i % num_experts);
    sum += static_cast<float>(offsets[e + 1] - offsets[e]) * probs[i];
  }
  sum = block_sum<256>(sum, shared);
  float scale = static_cast<float>(num_experts) / (static_cast<float>(tokens) * static_cast<float>(tokens));
  if (threadIdx.x == 0) partials[blockIdx.x] = sum * scale;
}

__global__ void group_offsets_kernel(const int32_t* keys, int64_t count, int32_t* offsets, int num_experts) {
  int e = blockIdx.x * blockDim.x + threadIdx.x;
  if (e > num_experts) return;
  int64_t low = 0, high = count;  // the first row whose expert is e or later
  while (low < high) {
    int64_t middle = (low + high) / 2;
    if (keys[middle] < e) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  offsets[e] = static_cast<int32_t>(low);
}
__global__ void invert_rows_kernel(const int32_t* sorted, int64_t count, int32_t* slot_of_row, int32_t* row_of_slot) {
  int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= count) return;
  int32_t slot = sorted[row];
  slot_of_row[row] = slot;
  row_of_slot[slot] = static_cast<int32_t>(row);
}

template <class T, int N>
__global__ void gather_kernel(const T* x, const int32_t* slot_of_row, T* y, int64_t rows, int64_t channels,
                              int chosen) {
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* source = x + int64_t{slot_of_row[row] / chosen} * channels;
    for (int64_t c = int64_t{threadIdx.x} * N; c < channels; c += int64_t{blockDim.x} * N) {
      *reinterpret_cast<Vector<T, N>*>(y + row * channels + c) = *reinterpret_cast<const Vector<T, N>*>(source + c);
    }
  }
}

template <class T, int N>
__global__ void combine_kernel(const T* x, const int32_t* row_of_slot, const float* weights, T* y, int64_t tokens,
                               int64_t channels, int chosen) {
  for (int64_t t = blockIdx.x; t < tokens; t += gridDim.x) {
    for (int64_t c = int64_t{threadIdx.x} * N; c < channels; c += int64_t{blockDim.x} * N) {
      float sum[N] = {};
      for (int j = 0; j < chosen; ++j) {
        int64_t slot = t * chosen + j;
        float a[N], weight = weights ? weights[slot] : 1.0f;
        load_floats<T, N>(x + int64_t{row_of_slot[slot]} * channels + c, a);
#pragma unroll
        for (int i = 0; i < N; ++i) sum[i] += weight * a[i];
      }
      store_floats<T, N>(y + t * channels + c, sum);
    }
  }
}

template <class T, int N>
__global__ void __launch_bounds__(128)
    combine_backward_kernel(const T* dy, const T* x, const int32_t* row_of_slot, const float* weights, T* dx,
                            float* dweights, int64_t slots, int64_t channels, int chosen) {
  __shared__ float shared[4];
  for (int64_t slot = blockIdx.x; slot < slots; slot += gridDim.x) {
    int64_t t = slot / chosen, row = row_of_slot[slot];
    float weight = weights[slot], dot = 0;
    for (int64_t c = int64_t{threadIdx.x} * N; c < channels; c += 128 * N) {
      float d[N], a[N];
      load_floats<T, N>(dy + t * channels + c, d);
      load_floats<T, N>(x + row * channels + c, a);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        dot += d[i] * a[i];
        d[i] *= weight;
      }
      store_floats<T, N>(dx + row * channels + c, d);
    }
    dot = block_sum<128>(dot, shared);
    if (threadIdx.x == 0) dweights[slot] = dot;
    __syncthreads();
  }
}

void check_experts(int64_t experts, int64_t chosen) {
  SINTER_CHECK(experts <= 32 * kMaxPerLane && chosen <= 32,
               "[router] {} experts, {} a token; the CUDA kernels take up to {} and 32", experts, chosen,
               32 * kMaxPerLane);
}

template <class T, class Launch>
void with_width(int64_t channels, std::initializer_list<const Tensor*> tensors, Launch&& launch) {
  bool vector = channels % kWidth<T> == 0;
  for (const Tensor* t : tensors) vector = vector && is_aligned(t->raw());
  vector ? launch(std::integral_constant<int, kWidth<T>>{}) : launch(std::integral_constant<int, 1>{});
}

}  // namespace

void router_forward(Stream& stream, const RouterForwardArgs& args) {
  int64_t tokens = args.logits.rows(), experts = args.logits.size(-1);
  if (tokens == 0) return;
  check_experts(experts, args.experts_per_token);
  dispatch_format(args.logits.dtype(), "router_forward", [&]<class T>(TypeTag<T>) {
    router_forward_kernel<T><<<static_cast<unsigned>(div_up(tokens, kWarps)), 32 * kWarps, 0, native(stream)>>>(
        args.logits.data<T>(), args.probs.data<float>(), args.experts.data<int32_t>(), args.weights.data<float>(),
        tokens, static_cast<int>(experts), static_cast<int>(args.experts_per_token), args.norm_topk_prob);
  });
  SINTER_CUDA_LAUNCHED();
}

void router_backward(Stream& stream, const RouterBackwardArgs& args) {
  int64_t tokens = args.probs.rows(), experts = args.probs.size(-1), chosen = args.experts.size(-1);
  if (tokens == 0) return;
  check_experts(experts, chosen);
  dispatch_format(args.dlogits.dtype(), "router_backward", [&]<class T>(TypeTag<T>) {
    router_backward_kernel<T><<<static_cast<unsigned>(div_up(tokens, kWarps)), 32 * kWarps, 0, native(stream)>>>(
        args.dweights.data<float>(), args.probs.data<float>(), args.experts.data<int32_t>(), args.weights.data<float>(),
        args.group_offsets.data<int32_t>(), args.balance_scale.data<float>(), args.dlogits.data<T>(), tokens,
        static_cast<int>(experts), static_cast<int>(chosen), args.norm_topk_prob);
  });
  SINTER_CUDA_LAUNCHED();
}

void balance_loss(Stream& stream, const BalanceLossArgs& args) {
  if (args.probs.rows() == 0) return;
  auto* partials = static_cast<float*>(scratch(stream, Scratch::partials, sizeof(float) * kBalanceBlocks));
  balance_loss_kernel<<<kBalanceBlocks, 256, 0, native(stream)>>>(args.probs.data<float>(),
                                                                  args.group_offsets.data<int32_t>(), args.probs.rows(),
                                                                  static_cast<int>(args.probs.size(-1)), partials);
  SINTER_CUDA_LAUNCHED();
  reduce_partials(stream, partials, kBalanceBlocks, 1, 1, args.loss.data<float>(), true);
}

void expert_sort(Stream& stream, const ExpertSortArgs& args) {
  int64_t slots = args.experts.num_elements();
  int experts = static_cast<int>(args.group_offsets.num_elements() - 1);
  if (slots == 0) {
    fill(stream, {args.group_offsets, 0});
    return;
  }
  SortedKeys sorted = sort_keys(stream, args.experts.data<int32_t>(), slots, experts);
  group_offsets_kernel<<<static_cast<unsigned>(div_up(experts + 1, 128)), 128, 0, native(stream)>>>(
      sorted.keys, slots, args.group_offsets.data<int32_t>(), experts);
  SINTER_CUDA_LAUNCHED();
  invert_rows_kernel<<<static_cast<unsigned>(div_up(slots, 256)), 256, 0, native(stream)>>>(
      sorted.positions, slots, args.slot_of_row.data<int32_t>(), args.row_of_slot.data<int32_t>());
  SINTER_CUDA_LAUNCHED();
}

void expert_gather(Stream& stream, const ExpertGatherArgs& args) {
  int64_t rows = args.slot_of_row.num_elements(), channels = args.x.size(-1);
  if (rows == 0) return;
  int chosen = static_cast<int>(rows / args.x.rows());
  dispatch_format(args.x.dtype(), "expert_gather", [&]<class T>(TypeTag<T>) {
    with_width<T>(channels, {&args.x, &args.y}, [&]<int N>(std::integral_constant<int, N>) {
      gather_kernel<T, N><<<grid_for(stream, rows, 1, 64), 128, 0, native(stream)>>>(
          args.x.data<T>(), args.slot_of_row.data<int32_t>(), args.y.data<T>(), rows, channels, chosen);
    });
  });
  SINTER_CUDA_LAUNCHED();
}

void expert_combine(Stream& stream, const ExpertCombineArgs& args) {
  int64_t tokens = args.y.rows(), channels = args.y.size(-1);
  if (tokens == 0) return;
  int chosen = static_cast<int>(args.row_of_slot.num_elements() / tokens);
  dispatch_format(args.x.dtype(), "expert_combine", [&]<class T>(TypeTag<T>) {
    with_width<T>(channels, {&args.x, &args.y}, [&]<int N>(std::integral_constant<int, N>) {
      combine_kernel<T, N><<<grid_for(stream, tokens, 1, 64), 128, 0, native(stream)>>>(
          args.x.data<T>(), args.row_of_slot.data<int32_t>(), args.weights.data<float>(), args.y.data<T>(), tokens,
          channels, chosen);
    });
  });
  SINTER_CUDA_LAUNCHED();
}

void expert_combine_backward(Stream& stream, const ExpertCombineBackwardArgs& args) {
  int64_t tokens = args.dy.rows(), channels = args.dy.size(-1), slots = args.row_of_slot.num_elements();
  if (slots == 0) return;
  int chosen = static_cast<int>(slots / tokens);
  dispatch_format(args.dy.dtype(), "expert_combine_backward", [&]<class T>(TypeTag<T>) {
    with_width<T>(channels, {&args.dy, &args.x, &args.dx}, [&]<int N>(std::integral_constant<int, N>) {
      combine_backward_kernel<T, N><<<grid_for(stream, slots, 1, 64), 128, 0, native(stream)>>>(
          args.dy.data<T>(), args.x.data<T>(), args.row_of_slot.data<int32_t>(), args.weights.data<float>(),
          args.dx.data<T>(), args.dweights.data<float>(), slots, channels, chosen);
    });
  });
  SINTER_CUDA_LAUNCHED();
}

}  // namespace sinter::kernels::cuda

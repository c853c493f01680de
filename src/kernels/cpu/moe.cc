// Mixture of experts: routing, sorting tokens by expert, and moving rows to the experts and back.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/formats.h"
#include "kernels/cpu/highway_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/moe.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sinter::kernels::cpu {
namespace HWY_NAMESPACE {

template <class T>
void router_softmax_rows(const RouterForwardArgs& args) {
  size_t experts = static_cast<size_t>(args.logits.size(-1));
  for_each_row(args.logits.rows(), args.logits.size(-1), [&](int64_t t) {
    const T* x = args.logits.data<T>() + static_cast<size_t>(t) * experts;
    float* p = args.probs.data<float>() + static_cast<size_t>(t) * experts;
    float largest = static_cast<float>(x[0]);
    for (size_t e = 1; e < experts; ++e) largest = std::max(largest, static_cast<float>(x[e]));
    Floats sum = zero(), shift = set(largest);
    for_vectors(experts, [&](size_t i, size_t n) HWY_ATTR {
      Floats v = exp_nonpositive(hn::Sub(load_n(x + i, n), shift));
      if (n < kLanes) v = hn::IfThenElseZero(hn::FirstN(kFloats, n), v);
      sum = hn::Add(sum, v);
      store_n(v, p + i, n);
    });
    Floats scale = set(1.0f / sum_lanes(sum));
    for_vectors(experts, [&](size_t i, size_t n) HWY_ATTR { store_n(hn::Mul(load_n(p + i, n), scale), p + i, n); });
  });
}

template <class T>
void combine_rows(const ExpertCombineArgs& args, int64_t chosen) {
  size_t channels = static_cast<size_t>(args.y.size(-1));
  const float* weights = args.weights ? args.weights.data<float>() : nullptr;
  for_each_row(args.y.rows(), args.y.size(-1) * chosen, [&](int64_t t) {
    T* y = args.y.data<T>() + static_cast<size_t>(t) * channels;
    const int32_t* rows = args.row_of_slot.data<int32_t>() + t * chosen;
    for_vectors(channels, [&](size_t i, size_t n) HWY_ATTR {
      Floats sum = zero();
      for (int64_t j = 0; j < chosen; ++j) {
        Floats v = load_n(args.x.data<T>() + static_cast<size_t>(rows[j]) * channels + i, n);
        sum = weights ? hn::MulAdd(set(weights[t * chosen + j]), v, sum) : hn::Add(sum, v);
      }
      store_n(sum, y + i, n);
    });
  });
}

template <class T>
void combine_backward_rows(const ExpertCombineBackwardArgs& args, int64_t chosen) {
  size_t channels = static_cast<size_t>(args.dy.size(-1));
  for_each_row(args.dy.rows() * chosen, args.dy.size(-1), [&](int64_t slot) {
    const T* dy = args.dy.data<T>() + static_cast<size_t>(slot / chosen) * channels;
    size_t row = static_cast<size_t>(args.row_of_slot.data<int32_t>()[slot]) * channels;
    const T* x = args.x.data<T>() + row;
    T* dx = args.dx.data<T>() + row;
    Floats weight = set(args.weights.data<float>()[slot]), dot = zero();
    for_vectors(channels, [&](size_t i, size_t n) HWY_ATTR {
      Floats d = load_n(dy + i, n);
      dot = hn::MulAdd(d, load_n(x + i, n), dot);
      store_n(hn::Mul(weight, d), dx + i, n);
    });
    args.dweights.data<float>()[slot] = sum_lanes(dot);
  });
}

void router_softmax_any(const RouterForwardArgs& args) {
  with_format(args.logits.dtype(), "router_forward", [&]<class T>(T) { router_softmax_rows<T>(args); });
}
void combine_any(const ExpertCombineArgs& args, int64_t chosen) {
  with_format(args.x.dtype(), "expert_combine", [&]<class T>(T) { combine_rows<T>(args, chosen); });
}
void combine_backward_any(const ExpertCombineBackwardArgs& args, int64_t chosen) {
  with_format(args.x.dtype(), "expert_combine_backward", [&]<class T>(T) { combine_backward_rows<T>(args, chosen); });
}

}  // namespace HWY_NAMESPACE
}  // namespace sinter::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sinter::kernels::cpu {

HWY_EXPORT(router_softmax_any);
HWY_EXPORT(combine_any);
HWY_EXPORT(combine_backward_any);

void router_forward(Stream&, const RouterForwardArgs& args) {
  HWY_DYNAMIC_DISPATCH(router_softmax_any)(args);
  int64_t experts = args.logits.size(-1), chosen = args.experts_per_token;
  with_format(args.logits.dtype(), "router_forward", [&]<class T>(T) {
    for_each_row(args.logits.rows(), experts * chosen, [&](int64_t t) {
      // Chosen by logit, not by probability: rounding in the softmax must not make or break ties.
      const T* x = args.logits.data<T>() + t * experts;
      const float* p = args.probs.data<float>() + t * experts;
      int32_t* expert = args.experts.data<int32_t>() + t * chosen;
      float* weight = args.weights.data<float>() + t * chosen;
      float total = 0;
      for (int64_t j = 0; j < chosen; ++j) {
        int64_t best = -1;
        for (int64_t e = 0; e < experts; ++e) {
          bool is_taken = std::find(expert, expert + j, static_cast<int32_t>(e)) != expert + j;
          if (!is_taken && (best < 0 || static_cast<float>(x[e]) > static_cast<float>(x[best]))) best = e;
        }
        expert[j] = static_cast<int32_t>(best);
        weight[j] = p[best];
        total += p[best];
      }
      for (int64_t j = 0; args.norm_topk_prob && j < chosen; ++j) weight[j] /= total;
    });
  });
}

void router_backward(Stream&, const RouterBackwardArgs& args) {
  int64_t tokens = args.probs.rows(), experts = args.probs.size(-1), chosen = args.experts.size(-1);
  const int32_t* offsets = args.group_offsets ? args.group_offsets.data<int32_t>() : nullptr;
  float balance = args.balance_scale ? args.balance_scale.data<float>()[0] : 0.0f, count = static_cast<float>(tokens);
  with_format(args.dlogits.dtype(), "router_backward", [&]<class T>(T) {
    base::parallel_for(tokens, rows_per_piece(experts), [&](int64_t begin, int64_t end) {
      std::vector<float> dp(static_cast<size_t>(experts));
      for (int64_t t = begin; t < end; ++t) {
        const float* p = args.probs.data<float>() + t * experts;
        const float* weight = args.weights.data<float>() + t * chosen;
        const float* dweight = args.dweights.data<float>() + t * chosen;
        const int32_t* expert = args.experts.data<int32_t>() + t * chosen;
        T* dlogits = args.dlogits.data<T>() + t * experts;
        for (int64_t e = 0; e < experts; ++e) {  // of E * sum_e f_e mean_t p[t, e]
          float slots = balance == 0.0f ? 0.0f : static_cast<float>(offsets[e + 1] - offsets[e]);
          dp[e] = balance * static_cast<float>(experts) * slots / (count * count);
        }
        float total = 0, dot = 0;
        for (int64_t j = 0; j < chosen; ++j) {
          total += p[expert[j]];
          dot += dweight[j] * weight[j];
        }
        for (int64_t j = 0; j < chosen; ++j) {
          dp[expert[j]] += args.norm_topk_prob ? (dweight[j] - dot) / total : dweight[j];
        }
        float mean = 0;
        for (int64_t e = 0; e < experts; ++e) mean += p[e] * dp[e];
        for (int64_t e = 0; e < experts; ++e) dlogits[e] = static_cast<T>(p[e] * (dp[e] - mean));
      }
    });
  });
}

void balance_loss(Stream&, const BalanceLossArgs& args) {
  int64_t tokens = args.probs.rows(), experts = args.probs.size(-1);
  const int32_t* offsets = args.group_offsets.data<int32_t>();
  std::vector<double> sums(static_cast<size_t>(experts));
  for (int64_t t = 0; t < tokens; ++t) {
    const float* p = args.probs.data<float>() + t * experts;
    for (int64_t e = 0; e < experts; ++e) sums[e] += p[e];
  }
  double count = static_cast<double>(tokens), loss = 0;
  for (int64_t e = 0; e < experts; ++e) loss += (offsets[e + 1] - offsets[e]) / count * (sums[e] / count);
  args.loss.data<float>()[0] += static_cast<float>(static_cast<double>(experts) * loss);
}

void expert_sort(Stream&, const ExpertSortArgs& args) {
  int64_t slots = args.experts.num_elements(), experts = args.group_offsets.num_elements() - 1;
  const int32_t* expert_of = args.experts.data<int32_t>();
  int32_t* offsets = args.group_offsets.data<int32_t>();
  std::fill(offsets, offsets + experts + 1, 0);
  for (int64_t slot = 0; slot < slots; ++slot) ++offsets[expert_of[slot] + 1];
  for (int64_t e = 0; e < experts; ++e) offsets[e + 1] += offsets[e];
  std::vector<int32_t> next(offsets, offsets + experts);
  for (int64_t slot = 0; slot < slots; ++slot) {
    int32_t row = next[expert_of[slot]]++;
    args.row_of_slot.data<int32_t>()[slot] = row;
    args.slot_of_row.data<int32_t>()[row] = static_cast<int32_t>(slot);
  }
}

void expert_gather(Stream&, const ExpertGatherArgs& args) {
  int64_t rows = args.slot_of_row.num_elements(), chosen = args.x.rows() == 0 ? 1 : rows / args.x.rows();
  size_t row_bytes = static_cast<size_t>(args.x.size(-1)) * base::dtype_bytes(args.x.dtype());
  for_each_row(rows, args.x.size(-1), [&](int64_t row) {
    size_t t = static_cast<size_t>(args.slot_of_row.data<int32_t>()[row] / chosen);
    std::memcpy(args.y.data<char>() + static_cast<size_t>(row) * row_bytes, args.x.data<char>() + t * row_bytes,
                row_bytes);
  });
}

void expert_combine(Stream&, const ExpertCombineArgs& args) {
  int64_t tokens = args.y.rows();
  if (tokens > 0) HWY_DYNAMIC_DISPATCH(combine_any)(args, args.row_of_slot.num_elements() / tokens);
}

void expert_combine_backward(Stream&, const ExpertCombineBackwardArgs& args) {
  int64_t tokens = args.dy.rows();
  if (tokens > 0) HWY_DYNAMIC_DISPATCH(combine_backward_any)(args, args.row_of_slot.num_elements() / tokens);
}

}  // namespace sinter::kernels::cpu
#endif

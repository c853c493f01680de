#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/reference/float_view.h"
#include "kernels/reference/reference.h"

namespace sinter::kernels::reference {

void router_forward(Stream&, const RouterForwardArgs& args) {
  FloatView logits(args.logits), probs(args.probs), weights(args.weights);
  int64_t experts = args.logits.size(-1), chosen = args.experts_per_token;
  for_each_index(args.logits.rows(), [&](int64_t t) {
    std::vector<double> p(static_cast<size_t>(experts));
    for (int64_t e = 0; e < experts; ++e) p[e] = logits[t * experts + e];
    double largest = *std::max_element(p.begin(), p.end()), sum = 0;
    for (double& v : p) sum += v = std::exp(v - largest);
    for (int64_t e = 0; e < experts; ++e) {
      p[e] /= sum;
      probs.set(t * experts + e, p[e]);
    }
    // By logit: equal logits tie exactly there, and larger logits never tie by rounding.
    std::vector<int32_t> order(static_cast<size_t>(experts));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return logits[t * experts + a] > logits[t * experts + b]; });
    double total = 0;
    for (int64_t j = 0; j < chosen; ++j) total += p[order[j]];
    for (int64_t j = 0; j < chosen; ++j) {
      args.experts.data<int32_t>()[t * chosen + j] = order[j];
      weights.set(t * chosen + j, args.norm_topk_prob ? p[order[j]] / total : p[order[j]]);
    }
  });
}

void router_backward(Stream&, const RouterBackwardArgs& args) {
  FloatView dweights(args.dweights), probs(args.probs), weights(args.weights), balance_scale(args.balance_scale),
      dlogits(args.dlogits);
  int64_t tokens = args.probs.rows(), experts = args.probs.size(-1), chosen = args.experts.size(-1);
  const int32_t* offsets = args.group_offsets.data<int32_t>();
  for_each_index(tokens, [&](int64_t t) {
    std::vector<double> dp(static_cast<size_t>(experts));
    if (balance_scale) {  // d/dp[t, e] of E * sum_e f_e mean_t p[t, e]; f_e is not differentiated
      double count = static_cast<double>(tokens);
      for (int64_t e = 0; e < experts; ++e) {
        double share = (offsets[e + 1] - offsets[e]) / count;
        dp[e] = balance_scale[0] * static_cast<double>(experts) * share / count;
      }
    }
    double total = 0, dot = 0;  // w_j = p_j / total when renormalised
    for (int64_t j = 0; j < chosen; ++j) {
      total += probs[t * experts + args.experts.data<int32_t>()[t * chosen + j]];
      dot += dweights[t * chosen + j] * weights[t * chosen + j];
    }
    for (int64_t j = 0; j < chosen; ++j) {
      double dw = dweights[t * chosen + j];
      dp[args.experts.data<int32_t>()[t * chosen + j]] += args.norm_topk_prob ? (dw - dot) / total : dw;
    }
    double mean = 0;
    for (int64_t e = 0; e < experts; ++e) mean += probs[t * experts + e] * dp[e];
    for (int64_t e = 0; e < experts; ++e) dlogits.set(t * experts + e, probs[t * experts + e] * (dp[e] - mean));
  });
}

void balance_loss(Stream&, const BalanceLossArgs& args) {
  FloatView probs(args.probs), loss(args.loss);
  int64_t tokens = args.probs.rows(), experts = args.probs.size(-1);
  const int32_t* offsets = args.group_offsets.data<int32_t>();
  double count = static_cast<double>(tokens), sum = 0;
  for (int64_t e = 0; e < experts; ++e) {
    double p = 0;
    for (int64_t t = 0; t < tokens; ++t) p += probs[t * experts + e];
    sum += (offsets[e + 1] - offsets[e]) / count * (p / count);
  }
  loss.add(0, static_cast<double>(experts) * sum);
}

void expert_sort(Stream&, const ExpertSortArgs& args) {
  int64_t slots = args.experts.num_elements(), experts = args.group_offsets.num_elements() - 1;
  const int32_t* expert_of = args.experts.data<int32_t>();
  int32_t* offsets = args.group_offsets.data<int32_t>();
  int32_t row = 0;
  for (int64_t e = 0; e < experts; ++e) {
    offsets[e] = row;
    for (int64_t slot = 0; slot < slots; ++slot) {
      if (expert_of[slot] != e) continue;
      args.row_of_slot.data<int32_t>()[slot] = row;
      args.slot_of_row.data<int32_t>()[row] = static_cast<int32_t>(slot);
      ++row;
    }
  }
  offsets[experts] = row;
}

void expert_gather(Stream&, const ExpertGatherArgs& args) {
  FloatView x(args.x), y(args.y);
  int64_t channels = args.x.size(-1), rows = args.slot_of_row.num_elements();
  int64_t chosen = args.x.rows() == 0 ? 1 : rows / args.x.rows();
  for_each_index(rows, [&](int64_t row) {
    int64_t t = args.slot_of_row.data<int32_t>()[row] / chosen;
    for (int64_t c = 0; c < channels; ++c) y.set(row * channels + c, x[t * channels + c]);
  });
}

void expert_combine(Stream&, const ExpertCombineArgs& args) {
  FloatView x(args.x), weights(args.weights), y(args.y);
  int64_t channels = args.y.size(-1), tokens = args.y.rows();
  int64_t chosen = tokens == 0 ? 1 : args.row_of_slot.num_elements() / tokens;
  for_each_index(tokens, [&](int64_t t) {
    for (int64_t c = 0; c < channels; ++c) {
      double sum = 0;
      for (int64_t j = 0; j < chosen; ++j) {
        int64_t slot = t * chosen + j, row = args.row_of_slot.data<int32_t>()[slot];
        sum += (weights ? weights[slot] : 1.0) * x[row * channels + c];
      }
      y.set(t * channels + c, sum);
    }
  });
}

void expert_combine_backward(Stream&, const ExpertCombineBackwardArgs& args) {
  FloatView dy(args.dy), x(args.x), weights(args.weights), dx(args.dx), dweights(args.dweights);
  int64_t channels = args.dy.size(-1), tokens = args.dy.rows();
  int64_t chosen = tokens == 0 ? 1 : args.row_of_slot.num_elements() / tokens;
  for_each_index(tokens * chosen, [&](int64_t slot) {
    int64_t t = slot / chosen, row = args.row_of_slot.data<int32_t>()[slot];
    double dot = 0;
    for (int64_t c = 0; c < channels; ++c) {
      double d = dy[t * channels + c];
      dot += d * x[row * channels + c];
      dx.set(row * channels + c, weights[slot] * d);
    }
    dweights.set(slot, dot);
  });
}

}  // namespace sinter::kernels::reference

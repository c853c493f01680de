#include "bench/timed_kernels.h"

#include <algorithm>

#include "bench/report.h"

namespace sinter::bench {
namespace {

using kernels::KernelTable;

std::vector<std::string>& names() {
  static std::vector<std::string> list;
  return list;
}
std::vector<KernelCall>& calls() {
  static std::vector<KernelCall> list;
  return list;
}

// Puts a clock before one entry of the table; the member pointer makes each a function of its own.
template <auto kMember>
struct Timed {
  static inline size_t index = 0;

  template <class... Args>
  static void call(Args... args) {
    double start = now_seconds();
    (kernels::kernels_for({}).*kMember)(args...);
    calls().push_back({index, now_seconds() - start});
  }
  template <class... Args>
  static void put(void (*&entry)(Args...)) {
    entry = call<Args...>;
  }
};

template <auto kMember>
void put_clock(KernelTable& table, const char* name) {
  Timed<kMember>::index = names().size();
  names().push_back(name);
  Timed<kMember>::put(table.*kMember);
}

KernelTable make_table() {
  using T = KernelTable;
  KernelTable t = kernels::kernels_for({});
  put_clock<&T::fill>(t, "fill");
  put_clock<&T::axpby>(t, "axpby");
  put_clock<&T::matmul>(t, "matmul");
  put_clock<&T::matmul_activation>(t, "matmul_activation");
  put_clock<&T::column_sum>(t, "column_sum");
  put_clock<&T::embedding_forward>(t, "embedding_forward");
  put_clock<&T::embedding_backward>(t, "embedding_backward");
  put_clock<&T::norm_forward>(t, "norm_forward");
  put_clock<&T::norm_backward>(t, "norm_backward");
  put_clock<&T::head_norm_forward>(t, "head_norm_forward");
  put_clock<&T::head_norm_backward>(t, "head_norm_backward");
  put_clock<&T::rope_table>(t, "rope_table");
  put_clock<&T::rope>(t, "rope");
  put_clock<&T::kv_write>(t, "kv_write");
  put_clock<&T::attention_forward>(t, "attention_forward");
  put_clock<&T::attention_backward>(t, "attention_backward");
  put_clock<&T::activation_forward>(t, "activation_forward");
  put_clock<&T::activation_backward>(t, "activation_backward");
  put_clock<&T::dropout>(t, "dropout");
  put_clock<&T::cross_entropy>(t, "cross_entropy");
  put_clock<&T::router_forward>(t, "router_forward");
  put_clock<&T::router_backward>(t, "router_backward");
  put_clock<&T::balance_loss>(t, "balance_loss");
  put_clock<&T::expert_sort>(t, "expert_sort");
  put_clock<&T::expert_gather>(t, "expert_gather");
  put_clock<&T::expert_combine>(t, "expert_combine");
  put_clock<&T::expert_combine_backward>(t, "expert_combine_backward");
  put_clock<&T::adamw>(t, "adamw");
  put_clock<&T::sgd>(t, "sgd");
  put_clock<&T::sum_squares>(t, "sum_squares");
  put_clock<&T::step_control>(t, "step_control");
  put_clock<&T::muon_momentum>(t, "muon_momentum");
  put_clock<&T::normalize>(t, "normalize");
  put_clock<&T::sum>(t, "sum");
  return t;
}

}  // namespace

const KernelTable& timed_kernels() {
  static const KernelTable table = make_table();
  return table;
}

const std::vector<KernelCall>& kernel_calls() { return calls(); }

std::vector<KernelClock> kernel_times(const std::vector<KernelCall>& list) {
  std::vector<KernelClock> clocks(names().size());
  for (const KernelCall& call : list) {
    KernelClock& clock = clocks[call.entry];
    clock.name = names()[call.entry];
    clock.seconds += call.seconds;
    ++clock.calls;
  }
  std::erase_if(clocks, [](const KernelClock& clock) { return clock.calls == 0; });
  std::sort(clocks.begin(), clocks.end(), [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  return clocks;
}

void reset_kernel_times() { calls().clear(); }

}  // namespace sinter::bench

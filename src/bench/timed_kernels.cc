#include "bench/timed_kernels.h"

#include <algorithm>
#include <type_traits>

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

  template <class Result, class Args>
  static Result call(core::Stream& stream, const Args& args) {
    const double start = now_seconds();
    if constexpr (std::is_same_v<Result, bool>) {
      const bool is_taken = (kernels::kernels_for({}).*kMember)(stream, args);
      if (is_taken) calls().push_back({index, now_seconds() - start});
      return is_taken;
    } else {
      (kernels::kernels_for({}).*kMember)(stream, args);
      calls().push_back({index, now_seconds() - start});
    }
  }
  template <class Result, class Args>
  static void put(Result (*&entry)(core::Stream&, const Args&)) {
    if (entry) entry = call<Result, Args>;
  }
};

struct PutClocks {
  KernelTable& table;
  template <auto kMember>
  void operator()(const char* name) {
    Timed<kMember>::index = names().size();
    names().push_back(name);
    Timed<kMember>::put(table.*kMember);
  }
};

KernelTable make_table() {
  KernelTable t = kernels::kernels_for({});
  kernels::visit_kernels(PutClocks{t});
  kernels::visit_fused_kernels(PutClocks{t});
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

// The program's one thread pool. Kernels split their work with parallel_for; nothing else starts compute threads.
#pragma once
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

namespace sinter::base {

// A non-owning reference to a callable; lives no longer than the call it is passed to.
template <class Signature>
class FunctionRef;
template <class R, class... Args>
class FunctionRef<R(Args...)> {
 public:
  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, FunctionRef>) FunctionRef(F&& f)  // NOLINT: implicit on purpose
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(f)))), call_([](void* o, Args... args) -> R {
          return (*static_cast<std::remove_reference_t<F>*>(o))(std::forward<Args>(args)...);
        }) {}
  R operator()(Args... args) const { return call_(object_, std::forward<Args>(args)...); }

 private:
  void* object_;
  R (*call_)(void*, Args...);
};

// Threads that take part in parallel_for, the caller included. First use reads SINTER_THREADS, else the CPUs allowed.
int num_threads();
// Changes it (1..1024). Only while no parallel_for runs.
void set_num_threads(int count);
// 0..num_threads()-1 inside parallel_for (0 is the caller, also outside): an index for per-thread scratch.
int thread_index();

// From here on parallel_for in the calling thread runs in it alone: for threads that work beside the program.
void leave_pool();

// Calls body(begin, end) over [0, count) in pieces of `grain` (the last may be smaller), in any order and thread.
// Which thread gets a piece is not fixed, so results must not depend on it. Nested calls run in the calling thread.
// The first exception thrown by a piece is rethrown here once all have stopped.
void parallel_for(int64_t count, int64_t grain, FunctionRef<void(int64_t begin, int64_t end)> body);

}  // namespace sinter::base

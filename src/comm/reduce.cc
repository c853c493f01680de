#include "comm/reduce.h"

#include <algorithm>
#include <type_traits>

#include "base/error.h"

namespace sinter::comm {
namespace {

template <class Wide>
Wide combine(Wide a, Wide b, ReduceOp op) {
  if (op == ReduceOp::sum) return a + b;
  return op == ReduceOp::min ? std::min(a, b) : std::max(a, b);
}

// Wide values of a storage format; bf16 and the like convert through float.
template <class T>
struct Widened {
  using Type = std::conditional_t<std::is_integral_v<T>, int64_t, double>;
  static Type load(T value) {
    if constexpr (std::is_arithmetic_v<T>)
      return static_cast<Type>(value);
    else
      return static_cast<double>(static_cast<float>(value));
  }
  static T store(Type value) {
    if constexpr (std::is_arithmetic_v<T>)
      return static_cast<T>(value);
    else
      return T(static_cast<float>(value));
  }
};

template <class T>
void reduce_rows(const T* parts, T* out, int64_t ranks, int64_t n, ReduceOp op) {
  using W = Widened<T>;
  for (int64_t i = 0; i < n; ++i) {
    auto value = W::load(parts[i]);
    for (int64_t r = 1; r < ranks; ++r) value = combine(value, W::load(parts[r * n + i]), op);
    out[i] = W::store(value);
  }
}

}  // namespace

void reduce_in_rank_order(const core::Tensor& parts, const core::Tensor& out, ReduceOp op) {
  const int64_t n = out.num_elements(), ranks = n == 0 ? 0 : parts.num_elements() / n;
  auto run = [&]<class T>(T) { reduce_rows<T>(parts.data<T>(), out.data<T>(), ranks, n, op); };
  using core::DType;
  switch (out.dtype()) {
    case DType::f32:
      return run(float{});
    case DType::f64:
      return run(double{});
    case DType::bf16:
      return run(base::bf16{});
    case DType::f16:
      return run(base::f16{});
    case DType::f8e4m3:
      return run(base::f8e4m3{});
    case DType::f8e5m2:
      return run(base::f8e5m2{});
    case DType::i32:
      return run(int32_t{});
    case DType::i64:
      return run(int64_t{});
    default:
      base::fail("[reduce] {} cannot be reduced", base::dtype_name(out.dtype()));
  }
}

}  // namespace sinter::comm

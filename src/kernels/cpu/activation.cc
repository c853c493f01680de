// SiLU, GELU, tanh-GELU and ReLU, gated or not, with their gradients.
#include "kernels/cpu/activation.h"

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/formats.h"
#include "kernels/cpu/highway_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/activation.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sinter::kernels::cpu {
namespace HWY_NAMESPACE {

struct ValueAndSlope {
  Floats value, slope;
};

// At x, each: kIsShort where the results are rounded to bf16.
struct Silu {
  template <bool kIsShort>
  static HWY_INLINE ValueAndSlope at(Floats x) {
    Floats bounded = clamp(x, -86.0f, 86.0f);
    Sigmoid s = sigmoid_of<kIsShort>(kIsShort ? exp2_in_range<true>(hn::Mul(bounded, set(-kLog2E)))
                                              : exp_in_range(hn::Neg(bounded)));
    s.value = hn::IfThenZeroElse(hn::Lt(x, bounded), s.value);
    return {hn::Mul(x, s.value), hn::Mul(s.value, hn::MulAdd(bounded, s.rest, set(1.0f)))};
  }
};
struct Gelu {
  template <bool kIsShort>
  static HWY_INLINE ValueAndSlope at(Floats x) {
    NormalAt normal = normal_at(x);
    return {hn::Mul(x, normal.cdf), hn::MulAdd(x, normal.density, normal.cdf)};
  }
};
struct GeluTanh {
  // 0.5 (1 + tanh u) = sigmoid(2 u): one exponential, and no cancellation for negative x.
  template <bool kIsShort>
  static HWY_INLINE ValueAndSlope at(Floats x) {
    constexpr float kLinear = 1.59576912160573071176f, kCubic = 0.044715f * kLinear;  // of 2 u; 2 sqrt(2 / pi)
    Floats bounded = clamp(x, -9.0f, 9.0f);  // beyond, s is 0 or 1 within 1e-28
    Floats square = hn::Mul(bounded, bounded);
    Floats exp_minus_2u =
        kIsShort
            ? exp2_in_range<true>(hn::Mul(bounded, hn::MulAdd(square, set(-kLog2E * kCubic), set(-kLog2E * kLinear))))
            : exp_in_range(hn::Mul(bounded, hn::MulAdd(square, set(-kCubic), set(-kLinear))));
    Sigmoid s = sigmoid_of<kIsShort>(exp_minus_2u);
    s.value = hn::IfThenZeroElse(hn::Lt(x, bounded), s.value);
    Floats slope_of_2u = hn::MulAdd(square, set(3.0f * kCubic), set(kLinear));
    return {hn::Mul(x, s.value), hn::MulAdd(hn::Mul(hn::Mul(bounded, s.rest), slope_of_2u), s.value, s.value)};
  }
};
struct Relu {
  template <bool kIsShort>
  static HWY_INLINE ValueAndSlope at(Floats x) {
    auto positive = hn::Gt(x, zero());
    return {hn::IfThenElseZero(positive, x), hn::IfThenElseZero(positive, set(1.0f))};
  }
};

// Of elements kept as T.
template <class Kind, class T>
HWY_INLINE ValueAndSlope value_and_slope(Floats x) {
  return Kind::template at<std::is_same_v<T, bf16>>(x);
}

// Without a gate: y may be x, slope may be null. Slopes that are not read soon can be streamed past the caches.
template <class Kind, class T>
void forward_part(const T* x, size_t count, T* y, T* slope, bool streams = false) {
  size_t first = 0;
  if constexpr (std::is_same_v<T, bf16>) {
    constexpr size_t kPair = 2 * kLanes;
    if (streams && slope && reinterpret_cast<uintptr_t>(slope) % (kPair * sizeof(T)) == 0) {
      for (; first + kPair <= count; first += kPair) {
        ValueAndSlope low = value_and_slope<Kind, T>(load(x + first)),
                      high = value_and_slope<Kind, T>(load(x + first + kLanes));
        store(low.value, y + first);
        store(high.value, y + first + kLanes);
        stream_pair(low.slope, high.slope, slope + first);
      }
    }
  }
  for_vectors(count - first, [&](size_t i, size_t n) HWY_ATTR {
    ValueAndSlope act = value_and_slope<Kind, T>(load_n(x + first + i, n));
    store_n(act.value, y + first + i, n);
    if (slope) store_n(act.slope, slope + first + i, n);
  });
}

template <class Kind, class T>
void forward_rows(const ActivationForwardArgs& args) {
  size_t width = static_cast<size_t>(args.y.size(-1)), stride = args.gated ? 2 * width : width;
  for_each_row(args.y.rows(), args.y.size(-1), [&](int64_t r) {
    const T* x = args.x.data<T>() + static_cast<size_t>(r) * stride;
    T* y = args.y.data<T>() + static_cast<size_t>(r) * width;
    if (args.gated) {
      for_vectors(width, [&](size_t i, size_t n) HWY_ATTR {
        store_n(hn::Mul(value_and_slope<Kind, T>(load_n(x + i, n)).value, load_n(x + width + i, n)), y + i, n);
      });
    } else {
      forward_part<Kind>(x, width, y, args.slope ? args.slope.data<T>() + static_cast<size_t>(r) * width : nullptr);
    }
  });
}

template <class Kind, class T>
void backward_rows(const ActivationBackwardArgs& args) {
  size_t width = static_cast<size_t>(args.dy.size(-1)), stride = args.gated ? 2 * width : width;
  for_each_row(args.dy.rows(), args.dy.size(-1), [&](int64_t r) {
    const T* x = args.x.data<T>() + static_cast<size_t>(r) * stride;
    const T* dy = args.dy.data<T>() + static_cast<size_t>(r) * width;
    T* dx = args.dx.data<T>() + static_cast<size_t>(r) * stride;
    for_vectors(width, [&](size_t i, size_t n) HWY_ATTR {
      Floats d = load_n(dy + i, n);
      ValueAndSlope act = value_and_slope<Kind, T>(load_n(x + i, n));
      if (args.gated) {
        Floats up = load_n(x + width + i, n);
        store_n(hn::Mul(d, act.value), dx + width + i, n);
        d = hn::Mul(d, up);
      }
      store_n(hn::Mul(d, act.slope), dx + i, n);
    });
  });
}

// Without a gate: dx may be dy.
template <class Kind, class T>
void backward_part(const T* x, const T* dy, size_t count, T* dx) {
  for_vectors(count, [&](size_t i, size_t n) HWY_ATTR {
    store_n(hn::Mul(load_n(dy + i, n), value_and_slope<Kind, T>(load_n(x + i, n)).slope), dx + i, n);
  });
}

template <class T>
void scale_part(const T* slope, const T* dy, size_t count, T* dx) {
  for_vectors(count, [&](size_t i, size_t n)
                         HWY_ATTR { store_n(hn::Mul(load_n(dy + i, n), load_n(slope + i, n)), dx + i, n); });
}

template <class T>
void scale_by_slopes(const ActivationBackwardArgs& args) {
  size_t width = static_cast<size_t>(args.dy.size(-1));
  for_each_row(args.dy.rows(), args.dy.size(-1), [&](int64_t r) {
    const size_t at = static_cast<size_t>(r) * width;
    scale_part(args.slope.data<T>() + at, args.dy.data<T>() + at, width, args.dx.data<T>() + at);
  });
}

template <class F>
void with_kind(spec::Activation kind, F&& f) {
  switch (kind) {
    case spec::Activation::silu:
      return f(Silu{});
    case spec::Activation::gelu:
      return f(Gelu{});
    case spec::Activation::gelu_tanh:
      return f(GeluTanh{});
    case spec::Activation::relu:
      return f(Relu{});
  }
}

void activation_forward_any(const ActivationForwardArgs& args) {
  with_format(args.x.dtype(), "activation_forward",
              [&]<class T>(T) { with_kind(args.kind, [&]<class Kind>(Kind) { forward_rows<Kind, T>(args); }); });
}
void activation_backward_any(const ActivationBackwardArgs& args) {
  with_format(args.dy.dtype(), "activation_backward", [&]<class T>(T) {
    if (args.slope) return scale_by_slopes<T>(args);
    with_kind(args.kind, [&]<class Kind>(Kind) { backward_rows<Kind, T>(args); });
  });
}

// Calls f(given row, its first element in a tensor `width` wide, count) for the rows of a block.
template <class T, class F>
HWY_INLINE void for_block_rows(const Block& block, const BlockValues& given, int64_t width, F&& f) {
  for (int64_t r = 0; r < block.num_rows; ++r) {
    f(static_cast<const T*>(given.values) + r * given.stride, (block.row + r) * width + block.column,
      static_cast<size_t>(block.num_columns));
  }
}
void forward_block_any(const ActivationForwardArgs& args, const Block& block, const BlockValues& given) {
  with_format(args.y.dtype(), "activation_forward", [&]<class T>(T) {
    T *y = args.y.data<T>(), *slope = args.slope ? args.slope.data<T>() : nullptr;
    T* kept = args.x ? args.x.data<T>() : nullptr;
    with_kind(args.kind, [&]<class Kind>(Kind) {
      for_block_rows<T>(block, given, args.y.size(-1), [&](const T* x, int64_t at, size_t count) {
        if (kept && kept + at != x) std::memcpy(kept + at, x, count * sizeof(T));
        forward_part<Kind>(x, count, y + at, slope ? slope + at : nullptr, given.streams);
      });
    });
  });
}
void backward_block_any(const ActivationBackwardArgs& args, const Block& block, const BlockValues& given, float* sums) {
  with_format(args.dx.dtype(), "activation_backward", [&]<class T>(T) {
    T* dx = args.dx.data<T>();
    auto add_row = [&](const T* row, size_t count) {
      for_vectors(count, [&](size_t i, size_t n)
                             HWY_ATTR { store_n(hn::Add(load_n(sums + i, n), load_n(row + i, n)), sums + i, n); });
    };
    if (sums) std::fill(sums, sums + block.num_columns, 0.0f);
    if (args.slope) {
      const T* slope = args.slope.data<T>();
      return for_block_rows<T>(block, given, args.dx.size(-1), [&](const T* dy, int64_t at, size_t count) {
        scale_part(slope + at, dy, count, dx + at);
        if (sums) add_row(dx + at, count);
      });
    }
    const T* x = args.x.data<T>();
    with_kind(args.kind, [&]<class Kind>(Kind) {
      for_block_rows<T>(block, given, args.dx.size(-1), [&](const T* dy, int64_t at, size_t count) {
        backward_part<Kind>(x + at, dy, count, dx + at);
        if (sums) add_row(dx + at, count);
      });
    });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace sinter::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sinter::kernels::cpu {

HWY_EXPORT(activation_forward_any);
HWY_EXPORT(activation_backward_any);
HWY_EXPORT(forward_block_any);
HWY_EXPORT(backward_block_any);
void activation_forward_block(const ActivationForwardArgs& args, const Block& block, const BlockValues& x) {
  HWY_DYNAMIC_DISPATCH(forward_block_any)(args, block, x);
}
void activation_backward_block(const ActivationBackwardArgs& args, const Block& block, const BlockValues& dy,
                               float* sums) {
  HWY_DYNAMIC_DISPATCH(backward_block_any)(args, block, dy, sums);
}
void ask_for_block(const Tensor& x, const Block& block) {
  const int64_t bytes = static_cast<int64_t>(base::dtype_bytes(x.dtype())), row_bytes = x.size(-1) * bytes;
  const char* row = static_cast<const char*>(x.raw()) + block.row * row_bytes + block.column * bytes;
  for (int64_t r = 0; r < block.num_rows; ++r, row += row_bytes) ask_for(row, block.num_columns * bytes);
}
void activation_forward(Stream&, const ActivationForwardArgs& args) {
  HWY_DYNAMIC_DISPATCH(activation_forward_any)(args);
}
void activation_backward(Stream& stream, const ActivationBackwardArgs& args) {
  HWY_DYNAMIC_DISPATCH(activation_backward_any)(args);
  if (args.dx_sums) column_sum(stream, {.x = args.dx, .y = args.dx_sums, .accumulate = true});
}

}  // namespace sinter::kernels::cpu
#endif

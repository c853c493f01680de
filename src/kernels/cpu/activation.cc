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

struct Silu {
  static HWY_INLINE ValueAndSlope at(Floats x) {
    Sigmoid s = sigmoid(x);
    return {hn::Mul(x, s.value), hn::Mul(s.value, hn::MulAdd(x, s.rest, set(1.0f)))};
  }
};
struct Gelu {
  static HWY_INLINE ValueAndSlope at(Floats x) {
    NormalAt normal = normal_at(x);
    return {hn::Mul(x, normal.cdf), hn::MulAdd(x, normal.density, normal.cdf)};
  }
};
struct GeluTanh {
  // 0.5 (1 + tanh u) = sigmoid(2 u): one exponential, and no cancellation for negative x.
  static HWY_INLINE ValueAndSlope at(Floats x) {
    constexpr float kTwoRoot = 1.59576912160573071176f, kCubic = 0.044715f;  // 2 sqrt(2 / pi)
    Floats bounded = hn::Min(hn::Max(x, set(-30.0f)), set(30.0f));  // beyond, s is 0 or 1 and the cube may overflow
    Floats one = set(1.0f), square = hn::Mul(bounded, bounded);
    Sigmoid s = sigmoid(hn::Mul(hn::Mul(bounded, set(kTwoRoot)), hn::MulAdd(square, set(kCubic), one)));
    Floats du = hn::Mul(set(kTwoRoot), hn::MulAdd(square, set(3.0f * kCubic), one));
    return {hn::Mul(x, s.value), hn::MulAdd(hn::Mul(x, s.rest), hn::Mul(du, s.value), s.value)};
  }
};
struct Relu {
  static HWY_INLINE ValueAndSlope at(Floats x) {
    auto positive = hn::Gt(x, zero());
    return {hn::IfThenElseZero(positive, x), hn::IfThenElseZero(positive, set(1.0f))};
  }
};

// Without a gate: y may be x, slope may be null.
template <class Kind, class T>
void forward_part(const T* x, size_t count, T* y, T* slope) {
  for_vectors(count, [&](size_t i, size_t n) HWY_ATTR {
    ValueAndSlope act = Kind::at(load_n(x + i, n));
    store_n(act.value, y + i, n);
    if (slope) store_n(act.slope, slope + i, n);
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
        store_n(hn::Mul(Kind::at(load_n(x + i, n)).value, load_n(x + width + i, n)), y + i, n);
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
      ValueAndSlope act = Kind::at(load_n(x + i, n));
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
    store_n(hn::Mul(load_n(dy + i, n), Kind::at(load_n(x + i, n)).slope), dx + i, n);
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

// Calls f(first element, count) for the rows of a block of a tensor `width` wide.
template <class F>
HWY_INLINE void for_block_rows(const Block& block, int64_t width, F&& f) {
  for (int64_t r = 0; r < block.num_rows; ++r)
    f((block.row + r) * width + block.column, static_cast<size_t>(block.num_columns));
}
void forward_block_any(const ActivationForwardArgs& args, const Block& block) {
  with_format(args.x.dtype(), "activation_forward", [&]<class T>(T) {
    const T* x = args.x.data<T>();
    T *y = args.y.data<T>(), *slope = args.slope ? args.slope.data<T>() : nullptr;
    with_kind(args.kind, [&]<class Kind>(Kind) {
      for_block_rows(block, args.y.size(-1), [&](int64_t at, size_t count) {
        forward_part<Kind>(x + at, count, y + at, slope ? slope + at : nullptr);
      });
    });
  });
}
void backward_block_any(const ActivationBackwardArgs& args, const Block& block) {
  with_format(args.dy.dtype(), "activation_backward", [&]<class T>(T) {
    const T* dy = args.dy.data<T>();
    T* dx = args.dx.data<T>();
    if (args.slope) {
      const T* slope = args.slope.data<T>();
      return for_block_rows(block, args.dy.size(-1),
                            [&](int64_t at, size_t count) { scale_part(slope + at, dy + at, count, dx + at); });
    }
    const T* x = args.x.data<T>();
    with_kind(args.kind, [&]<class Kind>(Kind) {
      for_block_rows(block, args.dy.size(-1),
                     [&](int64_t at, size_t count) { backward_part<Kind>(x + at, dy + at, count, dx + at); });
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
void activation_forward_block(const ActivationForwardArgs& args, const Block& block) {
  HWY_DYNAMIC_DISPATCH(forward_block_any)(args, block);
}
void activation_backward_block(const ActivationBackwardArgs& args, const Block& block) {
  HWY_DYNAMIC_DISPATCH(backward_block_any)(args, block);
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

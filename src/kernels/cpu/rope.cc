#include "kernels/cpu/cpu.h"
#include "kernels/cpu/formats.h"
#include "kernels/cpu/highway_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rope.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sinter::kernels::cpu {
namespace HWY_NAMESPACE {

template <class T>
void rope_rows(const RopeArgs& args) {
  size_t width = static_cast<size_t>(args.x.size(-1)), dim = static_cast<size_t>(args.head_dim), half = dim / 2;
  Floats sign = set(args.inverse ? -1.0f : 1.0f);
  for_each_row(args.x.rows(), args.num_rotated * args.head_dim, [&](int64_t t) {
    const float* cosines = args.cos_sin.data<float>() + static_cast<size_t>(t) * dim;
    T* row = args.x.data<T>() + static_cast<size_t>(t) * width;
    for_vectors(half, [&](size_t i, size_t n) HWY_ATTR {
      Floats c = load_n(cosines + i, n), s = hn::Mul(sign, load_n(cosines + half + i, n));
      for (int64_t h = 0; h < args.num_rotated; ++h) {
        T* a = row + static_cast<size_t>(h) * dim + i;
        T* b = a + half;
        Floats x = load_n(a, n), y = load_n(b, n);
        store_n(hn::NegMulAdd(y, s, hn::Mul(x, c)), a, n);
        store_n(hn::MulAdd(x, s, hn::Mul(y, c)), b, n);
      }
    });
  });
}

void rope_any(const RopeArgs& args) {
  with_format(args.x.dtype(), "rope", [&]<class T>(T) { rope_rows<T>(args); });
}

}  // namespace HWY_NAMESPACE
}  // namespace sinter::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sinter::kernels::cpu {

HWY_EXPORT(rope_any);
void rope(Stream&, const RopeArgs& args) { HWY_DYNAMIC_DISPATCH(rope_any)(args); }

}  // namespace sinter::kernels::cpu
#endif

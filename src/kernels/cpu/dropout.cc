#include "kernels/cpu/cpu.h"
#include "kernels/cpu/formats.h"
#include "kernels/cpu/highway_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/dropout.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/philox-inl.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sinter::kernels::cpu {
namespace HWY_NAMESPACE {

template <class T>
void dropout_elements(const DropoutArgs& args) {
  constexpr size_t kChunk = 1024;
  base::CounterRng rng{args.key.seed, args.key.stream};
  Floats p = set(args.p), scale = set(1.0f / (1.0f - args.p));
  int64_t count = args.x.num_elements();
  base::parallel_for(count, 8 * kChunk, [&](int64_t begin, int64_t end) {
    HWY_ALIGN uint32_t words[kChunk + 8 + 4 * kLanes];
    for (int64_t first = begin; first < end; first += kChunk) {
      size_t length = static_cast<size_t>(std::min<int64_t>(kChunk, end - first));
      const uint32_t* bits = random_bits(rng, args.first_index + static_cast<uint64_t>(first), length, words);
      const T* x = args.x.data<T>() + first;
      T* y = args.y.data<T>() + first;
      for_vectors(length, [&](size_t i, size_t n) HWY_ATTR {
        auto word = hn::ShiftRight<8>(hn::LoadU(kUints, bits + i));  // the buffer is longer than the chunk
        Floats uniform = hn::Mul(hn::ConvertTo(kFloats, hn::BitCast(kInts, word)), set(0x1p-24f));
        store_n(hn::IfThenElseZero(hn::Ge(uniform, p), hn::Mul(load_n(x + i, n), scale)), y + i, n);
      });
    }
  });
}

void dropout_any(const DropoutArgs& args) {
  with_format(args.x.dtype(), "dropout", [&]<class T>(T) { dropout_elements<T>(args); });
}

}  // namespace HWY_NAMESPACE
}  // namespace sinter::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sinter::kernels::cpu {

HWY_EXPORT(dropout_any);
void dropout(Stream&, const DropoutArgs& args) { HWY_DYNAMIC_DISPATCH(dropout_any)(args); }

}  // namespace sinter::kernels::cpu
#endif

#include <cmath>
#include <cstring>

#include "kernels/cpu/quantized/integer_rows-inl.h"

namespace sinter::kernels::cpu {
namespace {

struct Portable {
  struct Bytes {
    uint8_t b[32];
  };
  struct Lanes {
    float v[8];
  };
  static Bytes load(const uint8_t* p) {
    Bytes x;
    std::memcpy(x.b, p, 32);
    return x;
  }
  static Bytes load_nibbles(const uint8_t* p) {
    Bytes x;
    for (int i = 0; i < 16; ++i) x.b[i] = p[i] & 15, x.b[i + 16] = p[i] >> 4;
    return x;
  }
  template <class Change>
  static Bytes each(Change change) {
    Bytes x;
    for (int i = 0; i < 32; ++i) x.b[i] = static_cast<uint8_t>(change(i));
    return x;
  }
  template <int kShift, int kMask>
  static Bytes shift_and(const Bytes& x) {
    return each([&](int i) { return x.b[i] >> kShift & kMask; });
  }
  static Bytes raise4(const Bytes& x) {
    return each([&](int i) { return x.b[i] << 4; });
  }
  static Bytes join(const Bytes& x, const Bytes& y) {
    return each([&](int i) { return x.b[i] | y.b[i]; });
  }
  static Bytes less(const Bytes& x, int n) {
    return each([&](int i) { return x.b[i] - n; });
  }
  static Lanes zero() { return {}; }
  static Lanes set(float x) { return {{x, x, x, x, x, x, x, x}}; }
  static Lanes halves(float x, float y) { return {{x, x, x, x, y, y, y, y}}; }
  static Lanes load_lanes(const float* p) {
    Lanes x;
    std::memcpy(x.v, p, sizeof x.v);
    return x;
  }
  static Lanes dot(const Bytes& weights, const Bytes& codes) {
    Lanes result;
    for (int lane = 0; lane < 8; ++lane) {
      int sum = 0;
      for (int i = 4 * lane; i < 4 * lane + 4; ++i)
        sum += static_cast<int8_t>(weights.b[i]) * static_cast<int8_t>(codes.b[i]);
      result.v[lane] = static_cast<float>(sum);
    }
    return result;
  }
  static Lanes dot_unsigned(const Bytes& weights, const Bytes& codes) { return dot(weights, codes); }
  static Lanes add_product(const Lanes& a, const Lanes& b, const Lanes& c) {
    Lanes result;
    for (int i = 0; i < 8; ++i) result.v[i] = std::fma(a.v[i], b.v[i], c.v[i]);
    return result;
  }
  static float sum(const Lanes& x) {
    float four[4];
    for (int i = 0; i < 4; ++i) four[i] = x.v[i] + x.v[i + 4];
    return (four[0] + four[2]) + (four[1] + four[3]);
  }
};

}  // namespace

IntegerRowKernel portable_integer_kernel(base::WeightFormat format) { return IntegerRows<Portable>::find(format); }

}  // namespace sinter::kernels::cpu

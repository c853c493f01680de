#include <cmath>
#include <cstring>

#include "kernels/cpu/quantized/integer_rows-inl.h"

namespace sinter::kernels::cpu {
namespace {

struct Portable {
  struct Bytes {
    uint8_t b[32];
  };
  struct Ints {
    int32_t v[8];
  };
  struct Lanes {
    float v[8];
  };
  template <class Vector, class Change>
  static Vector each(int count, Change change) {
    Vector x;
    for (int i = 0; i < count; ++i) {
      if constexpr (sizeof(Vector) == sizeof(Bytes) && requires { x.b; }) {
        x.b[i] = static_cast<uint8_t>(change(i));
      } else {
        x.v[i] = change(i);
      }
    }
    return x;
  }
  template <class Change>
  static Bytes bytes(Change change) {
    return each<Bytes>(32, change);
  }
  template <class Change>
  static Ints ints(Change change) {
    return each<Ints>(8, change);
  }
  template <class Change>
  static Lanes lanes(Change change) {
    return each<Lanes>(8, change);
  }

  static Bytes load(const uint8_t* p) {
    return bytes([&](int i) { return p[i]; });
  }
  static Bytes load_nibbles(const uint8_t* p) {
    return bytes([&](int i) { return p[i % 16] >> i / 16 * 4 & 15; });
  }
  template <int kShift, int kMask>
  static Bytes shift_and(const Bytes& x) {
    return bytes([&](int i) { return x.b[i] >> kShift & kMask; });
  }
  template <int kShift>
  static Bytes raise(const Bytes& x) {
    return bytes([&](int i) { return x.b[i] << kShift; });
  }
  static Bytes join(const Bytes& x, const Bytes& y) {
    return bytes([&](int i) { return x.b[i] | y.b[i]; });
  }
  static Bytes flip(const Bytes& x) {
    return bytes([&](int i) { return x.b[i] ^ 128; });
  }
  static Bytes bits(uint32_t x) {
    return bytes([&](int i) { return (x >> i & 1) << 4; });
  }
  static Bytes lookup(const uint8_t* table, const Bytes& codes) {
    return bytes([&](int i) { return table[codes.b[i]]; });
  }

  static Ints set_ints(int x) {
    return ints([&](int) { return x; });
  }
  static Ints load_ints(const int32_t* p) {
    return ints([&](int i) { return p[i]; });
  }
  static Ints add(const Ints& x, const Ints& y) {
    return ints([&](int i) { return x.v[i] + y.v[i]; });
  }
  static Ints subtract(const Ints& x, const Ints& y) {
    return ints([&](int i) { return x.v[i] - y.v[i]; });
  }
  static Ints times(const Ints& x, const Ints& y) {
    return ints([&](int i) { return x.v[i] * y.v[i]; });
  }
  template <int kShift>
  static Ints shift_left(const Ints& x) {
    return ints([&](int i) { return x.v[i] * (1 << kShift); });
  }
  static void split(const uint64_t* words, Ints& even, Ints& odd) {
    int8_t values[16];
    std::memcpy(values, words, sizeof values);
    for (int i = 0; i < 8; ++i) even.v[i] = values[2 * i], odd.v[i] = values[2 * i + 1];
  }
  template <bool kIsWide>
  static Ints dot(const Bytes& codes, const Bytes& x) {
    return ints([&](int lane) {
      int sum = 0;
      for (int i = 4 * lane; i < 4 * lane + 4; ++i) sum += codes.b[i] * static_cast<int8_t>(x.b[i]);
      return sum;
    });
  }
  static void fold(const Ints* x, Ints& low, Ints& high) {
    auto four = [&](int i, int from) { return x[i].v[from] + x[i].v[from + 1] + x[i].v[from + 2] + x[i].v[from + 3]; };
    low = ints([&](int i) { return four(i, 0); });
    high = ints([&](int i) { return four(i, 4); });
  }

  static Lanes zero() { return {}; }
  static Lanes set(float x) {
    return lanes([&](int) { return x; });
  }
  static Lanes load_lanes(const float* p) {
    return lanes([&](int i) { return p[i]; });
  }
  static Lanes multiply(const Lanes& x, const Lanes& y) {
    return lanes([&](int i) { return x.v[i] * y.v[i]; });
  }
  static Lanes to_lanes(const Ints& x) {
    return lanes([&](int i) { return static_cast<float>(x.v[i]); });
  }
  static Lanes of_bytes(uint64_t x) {
    return lanes([&](int i) { return static_cast<float>(x >> 8 * i & 255); });
  }
  static float half(const uint8_t* p) { return base::block::load_half(p); }
  static Lanes strided_halves(const uint8_t* p, int64_t n) {
    return lanes([&](int i) { return half(p + i * n); });
  }
  static Lanes add_product(const Lanes& a, const Lanes& b, const Lanes& c) {
    return lanes([&](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); });
  }
  static Lanes subtract_product(const Lanes& a, const Lanes& b, const Lanes& c) {
    return lanes([&](int i) { return std::fma(-a.v[i], b.v[i], c.v[i]); });
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

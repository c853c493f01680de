// Python's random.Random: the same numbers, draws and shuffles from the same seed (Mersenne twister MT19937), because
// few-shot examples and bootstrapped standard errors of lm-evaluation-harness are drawn with it.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace sinter::eval {

class PythonRandom {
 public:
  explicit PythonRandom(uint64_t seed);
  // A seed of any size in decimal digits, as random.Random(int(digits)).
  static PythonRandom from_digits(std::string_view digits);

  uint32_t next32();           // getrandbits(32)
  double random();             // [0, 1), 53 bits
  uint32_t below(uint32_t n);  // [0, n), n > 0
  // Places that random.sample(list of n, k) takes, in its order. Throws base::Error when k > n.
  std::vector<uint32_t> sample(uint32_t n, uint32_t k);
  template <class T>
  void shuffle(std::vector<T>& items) {
    for (size_t i = items.size(); i-- > 1;) std::swap(items[i], items[below(static_cast<uint32_t>(i) + 1)]);
  }
  // Places that random.choices(list of n, k=count) takes.
  std::vector<uint32_t> choices(uint32_t n, uint32_t count);

 private:
  PythonRandom() = default;
  void seed_by(const std::vector<uint32_t>& key);
  std::array<uint32_t, 624> state_{};
  size_t at_ = 624;
};

}  // namespace sinter::eval

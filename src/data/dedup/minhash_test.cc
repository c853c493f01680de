#include "data/dedup/minhash.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"

namespace sinter::data {
namespace {

// Letters only: signatures take all numbers for one.
std::string make_word(uint64_t value) {
  std::string word;
  for (; value > 0; value /= 26) word += static_cast<char>('a' + value % 26);
  return word;
}

// Two texts of `length` distinct words each that share the first `shared`.
std::pair<std::string, std::string> make_pair(int64_t number, int64_t length, int64_t shared) {
  std::string a, b;
  for (int64_t w = 0; w < length; ++w) {
    const auto place = static_cast<uint64_t>(number * 1000 + w);
    const std::string word =
        make_word(base::CounterRng{11, 0}.bits(place)) + "y" + make_word(static_cast<uint64_t>(w + 1));
    a += word + " ";
    b += (w < shared ? word : word + "zz") + " ";
  }
  return {a, b};
}

TEST(MinHash, RecallFollowsTheCurveOfBandsAndRows) {
  constexpr int64_t kPairs = 3000, kLength = 64;
  for (const auto& [bands, rows] : std::vector<std::pair<int64_t, int64_t>>{{14, 8}, {9, 4}}) {
    MinHashOptions options;
    options.bands = bands;
    options.rows = rows;
    MinHasher hasher(options);
    std::vector<uint64_t> a(static_cast<size_t>(options.num_hashes())), b(a.size());
    for (const int64_t shared : {42, 46, 50, 55, 60}) {
      const double common = static_cast<double>(shared - 4), each = kLength - 4;
      const double similarity = common / (2 * each - common);
      int64_t found = 0;
      for (int64_t i = 0; i < kPairs; ++i) {
        const auto [first, second] = make_pair(i + shared * kPairs, kLength, shared);
        ASSERT_TRUE(hasher.sign(first, a) && hasher.sign(second, b));
        bool meets = false;
        for (int64_t band = 0; band < bands; ++band) {
          meets = meets || std::equal(a.begin() + band * rows, a.begin() + (band + 1) * rows, b.begin() + band * rows);
        }
        found += meets;
      }
      const double expected = 1 - std::pow(1 - std::pow(similarity, rows), bands);
      EXPECT_NEAR(static_cast<double>(found) / kPairs, expected, .02) << bands << " x " << rows << " at " << similarity;
    }
  }
}

}  // namespace
}  // namespace sinter::data

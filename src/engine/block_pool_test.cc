#include "engine/block_pool.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace sinter::engine {
namespace {

TEST(BlockPool, GivesEachBlockOnce) {
  BlockPool pool(3, 2);
  const int32_t a = pool.allocate(), b = pool.allocate();
  EXPECT_NE(a, b);
  pool.release(a);
  EXPECT_EQ(pool.allocate(), a);
  EXPECT_EQ(pool.num_free(), 1);
  pool.allocate();
  EXPECT_THROW(pool.allocate(), base::Error);
  pool.release(b);
  EXPECT_THROW(pool.release(b), base::Error);
  EXPECT_THROW(pool.release(7), base::Error);
}

TEST(BlockPool, NamedBlocksAreFoundUntilTheirMemoryIsNeeded) {
  BlockPool pool(3, 2);
  const BlockHash root = first_hash(0, 0, 0);
  const std::vector<int32_t> tokens{5, 6}, others{5, 7};
  const BlockHash hash = next_hash(root, tokens);
  const int32_t a = pool.allocate();
  pool.name(a, hash, root, tokens);
  EXPECT_EQ(pool.find_and_hold(hash, root, tokens), a);
  EXPECT_EQ(pool.references(a), 2);
  EXPECT_EQ(pool.find_and_hold(hash, root, others), -1);  // equal hashes alone are not believed
  EXPECT_EQ(pool.find_and_hold(hash, first_hash(0, 0, 1), tokens), -1);
  pool.release(a);
  pool.release(a);
  EXPECT_EQ(pool.num_named_free(), 1);
  const int32_t b = pool.allocate(), c = pool.allocate();  // those without a name go first
  EXPECT_NE(b, a);
  EXPECT_NE(c, a);
  EXPECT_EQ(pool.find_and_hold(hash, root, tokens), a);
  pool.release(a);
  EXPECT_EQ(pool.allocate(), a);
  EXPECT_EQ(pool.find_and_hold(hash, root, tokens), -1);
  pool.check(std::vector<int32_t>{1, 1, 1});
  EXPECT_THROW(pool.check(std::vector<int32_t>{1, 2, 1}), base::Error);
}

TEST(BlockPool, NamesDependOnWeightsAdapterAndSalt) {
  const std::vector<int32_t> tokens{1, 2, 3};
  const BlockHash plain = next_hash(first_hash(0, 0, 0), tokens);
  EXPECT_EQ(plain, next_hash(first_hash(0, 0, 0), tokens));
  EXPECT_NE(plain, next_hash(first_hash(1, 0, 0), tokens));
  EXPECT_NE(plain, next_hash(first_hash(0, 1, 0), tokens));
  EXPECT_NE(plain, next_hash(first_hash(0, 0, 1), tokens));
}

}  // namespace
}  // namespace sinter::engine

// Collectives and bucketed gradient sums on several ranks; launched by tests/mpirun.sh.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "base/rng.h"
#include "comm/communicator.h"
#include "parallel/data.h"

namespace sinter {
namespace {

comm::Communicator& world() { return comm::world(); }

float value_at(int rank, size_t i) { return base::CounterRng{1, static_cast<uint64_t>(rank)}.normal(i); }

std::vector<float> values_of(int rank, size_t count) {
  std::vector<float> out(count);
  for (size_t i = 0; i < count; ++i) out[i] = value_at(rank, i);
  return out;
}

// The sum every rank must get, bit for bit: in double, in the order of the ranks.
float sum_at(size_t i) {
  double sum = 0;
  for (int r = 0; r < world().size(); ++r) sum += value_at(r, i);
  return static_cast<float>(sum);
}

TEST(Comm, TheLaunchHasSeveralRanks) {
  EXPECT_STREQ(world().name(), "mpi");
  EXPECT_GT(world().size(), 1);
}

TEST(Comm, AllReduceSumsInTheOrderOfTheRanks) {
  for (size_t count : {1, 2, 5, 1000, 40001}) {
    std::vector<float> values = values_of(world().rank(), count);
    world().all_reduce(values, comm::ReduceOp::sum);
    for (size_t i = 0; i < count; ++i) ASSERT_EQ(values[i], sum_at(i)) << i;
  }
}

TEST(Comm, MinMaxAndWholeNumbersReduce) {
  const int n = world().size(), r = world().rank();
  std::vector<int64_t> whole{r + 1, -r};
  world().all_reduce(whole, comm::ReduceOp::sum);
  EXPECT_EQ(whole[0], n * (n + 1) / 2);
  std::vector<double> low{1.0 * r}, high{1.0 * r};
  world().all_reduce(low, comm::ReduceOp::min);
  world().all_reduce(high, comm::ReduceOp::max);
  EXPECT_EQ(low[0], 0);
  EXPECT_EQ(high[0], n - 1);
}

TEST(Comm, BroadcastGatherAndScatterMoveTheRightPieces) {
  const auto n = static_cast<size_t>(world().size());
  const auto r = static_cast<size_t>(world().rank());
  std::vector<float> from_last = values_of(world().rank(), 7);
  world().broadcast(std::as_writable_bytes(std::span(from_last)), world().size() - 1);
  EXPECT_EQ(from_last, values_of(world().size() - 1, 7));
  std::vector<float> own = values_of(world().rank(), 5), all(5 * n);
  world().all_gather(std::as_bytes(std::span(own)), std::as_writable_bytes(std::span(all)));
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], value_at(static_cast<int>(i / 5), i % 5));
  std::vector<float> input = values_of(world().rank(), 3 * n), piece(3);
  world().reduce_scatter(input, piece);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(piece[i], sum_at(3 * r + i));
}

TEST(Comm, ARankAloneIsTheIdentity) {
  auto self = comm::make_self();
  std::vector<float> values = values_of(0, 9);
  self->all_reduce(values, comm::ReduceOp::sum);
  EXPECT_EQ(values, values_of(0, 9));
}

// Buckets must give the same bits as one sum of the whole buffer, whatever the order stretches become ready in.
TEST(GradientReducer, BucketsEqualOneSumAndStartBehindBackward) {
  const int64_t n = 10007;
  core::Tensor gradients(core::runtime({}).allocator(), {n}, base::DType::f32);
  parallel::GradientReducer reducer(world(), gradients, 1000 * 4);
  EXPECT_EQ(reducer.num_buckets(), 11);
  for (int step = 0; step < 3; ++step) {
    for (int64_t i = 0; i < n; ++i) gradients.data<float>()[i] = value_at(world().rank(), static_cast<size_t>(i));
    reducer.begin_step();
    if (step < 2) {
      reducer.mark_ready(0, 100);  // a tied embedding's stretch may come at any time
      for (int64_t end = n; end > 100; end -= 333) reducer.mark_ready(std::max<int64_t>(end - 333, 100), end);
      EXPECT_EQ(reducer.num_overlapped(), 11);
    }
    reducer.finish();
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(gradients.data<float>()[i], sum_at(static_cast<size_t>(i))) << i;
  }
}

}  // namespace
}  // namespace sinter

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  sinter::comm::world();
  return RUN_ALL_TESTS();
}

// Collectives, groups, the mesh and bucketed gradient sums on several ranks; launched by tests/mpirun.sh.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "base/rng.h"
#include "comm/communicator.h"
#include "comm/ring.h"
#include "comm/together.h"
#include "kernels/args/fp8.h"
#include "parallel/data.h"
#include "parallel/mesh.h"

namespace sinter {
namespace {

using core::DType;
using core::Tensor;

comm::Communicator& world() { return comm::world(); }
int64_t ranks() { return world().size(); }
int64_t rank() { return world().rank(); }

float value_at(int64_t rank, int64_t i) {
  return base::CounterRng{1, static_cast<uint64_t>(rank)}.normal(static_cast<uint64_t>(i));
}

// Numbers of one rank in any format: normal numbers, or small whole ones.
template <class T>
T typed_value(int64_t rank, int64_t i) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>((rank + 1) * 7 + i % 13 - 5);
  else
    return T(value_at(rank, i));
}

template <class T>
Tensor values_of(int64_t rank, int64_t count, int64_t first = 0) {
  Tensor t(core::runtime({}).allocator(), {count}, base::dtype_of<T>);
  for (int64_t i = 0; i < count; ++i) t.data<T>()[i] = typed_value<T>(rank, first + i);
  return t;
}

double number(float v) { return v; }
double number(base::bf16 v) { return static_cast<float>(v); }
double number(base::f8e4m3 v) { return static_cast<float>(v); }
double number(int32_t v) { return v; }

// What every rank must get, bit for bit: reduced in double, in the order of the ranks, rounded once.
template <class T>
double reduced_at(int64_t i, comm::ReduceOp op) {
  double out = number(typed_value<T>(0, i));
  for (int64_t r = 1; r < ranks(); ++r) {
    const double next = number(typed_value<T>(r, i));
    out = op == comm::ReduceOp::sum   ? out + next
          : op == comm::ReduceOp::min ? std::min(out, next)
                                      : std::max(out, next);
  }
  if constexpr (std::is_integral_v<T>)
    return out;
  else
    return number(T(static_cast<float>(out)));
}

TEST(Comm, TheLaunchHasSeveralRanks) {
  EXPECT_STREQ(world().name(), "mpi");
  EXPECT_GT(ranks(), 1);
}

template <class T>
class CommOf : public ::testing::Test {};
using Formats = ::testing::Types<float, base::bf16, base::f8e4m3, int32_t>;
TYPED_TEST_SUITE(CommOf, Formats);

TYPED_TEST(CommOf, ReductionsAreTakenInTheOrderOfTheRanks) {
  using T = TypeParam;
  for (comm::ReduceOp op : {comm::ReduceOp::sum, comm::ReduceOp::min, comm::ReduceOp::max}) {
    for (int64_t count : {1, 2, 5, 1000, 4001}) {
      Tensor all = values_of<T>(rank(), count), one = values_of<T>(rank(), count);
      const int root = static_cast<int>(ranks()) - 1;
      comm::Handle first = world().start_all_reduce(all, op), second = world().start_reduce(one, root, op);
      second->wait();
      first->wait();
      Tensor input = values_of<T>(rank(), count * ranks()), piece = values_of<T>(0, count);
      world().reduce_scatter(input, piece, op);
      for (int64_t i = 0; i < count; ++i) {
        ASSERT_EQ(number(all.data<T>()[i]), reduced_at<T>(i, op)) << i;
        ASSERT_EQ(number(piece.data<T>()[i]), reduced_at<T>(rank() * count + i, op)) << i;
        if (rank() == root) {
          ASSERT_EQ(number(one.data<T>()[i]), reduced_at<T>(i, op)) << i;
        }
      }
    }
  }
}

TYPED_TEST(CommOf, MovesBringTheRightPieces) {
  using T = TypeParam;
  const int64_t n = 5;
  const int root = static_cast<int>(ranks()) - 1;
  Tensor from_root = values_of<T>(rank(), n);
  world().broadcast(from_root, root);
  Tensor all(core::runtime({}).allocator(), {n * ranks()}, base::dtype_of<T>), gathered = values_of<T>(0, n * ranks());
  world().all_gather(values_of<T>(rank(), n), all);
  world().gather(values_of<T>(rank(), n), gathered, root);
  Tensor piece = values_of<T>(0, n);
  world().scatter(values_of<T>(rank(), n * ranks()), piece, root);
  Tensor exchanged = values_of<T>(0, n * ranks());
  world().all_to_all(values_of<T>(rank(), n * ranks()), exchanged);
  for (int64_t i = 0; i < n * ranks(); ++i) {
    ASSERT_EQ(number(all.data<T>()[i]), number(typed_value<T>(i / n, i % n)));
    ASSERT_EQ(number(exchanged.data<T>()[i]), number(typed_value<T>(i / n, rank() * n + i % n)));
    if (rank() == root) {
      ASSERT_EQ(number(gathered.data<T>()[i]), number(typed_value<T>(i / n, i % n)));
    }
  }
  for (int64_t i = 0; i < n; ++i) {
    ASSERT_EQ(number(from_root.data<T>()[i]), number(typed_value<T>(root, i)));
    ASSERT_EQ(number(piece.data<T>()[i]), number(typed_value<T>(root, rank() * n + i)));
  }
}

TEST(Comm, AnAllGatherMayStandInItsOwnPlace) {
  Tensor all = values_of<float>(rank(), 3 * ranks());
  world().all_gather(all.slice(3 * rank(), 3), all);
  for (int64_t i = 0; i < 3 * ranks(); ++i) EXPECT_EQ(all.data<float>()[i], value_at(i / 3, i));
}

// Rank r sends r + s + 1 rows of two numbers to rank s, and nothing from 0 to 1.
TEST(Comm, AllToAllOfUnequalRows) {
  auto rows = [](int64_t from, int64_t to) { return from == 0 && to == 1 ? 0 : from + to + 1; };
  std::vector<int64_t> send, receive;
  for (int64_t r = 0; r < ranks(); ++r) send.push_back(rows(rank(), r)), receive.push_back(rows(r, rank()));
  const int64_t in = std::accumulate(send.begin(), send.end(), int64_t{0}),
                out = std::accumulate(receive.begin(), receive.end(), int64_t{0});
  const Tensor input = values_of<float>(rank(), 2 * in).reshape({in, 2});
  const Tensor output = values_of<float>(99, 2 * (out + 1)).reshape({out + 1, 2});  // one row too many: left alone
  world().all_to_all(input, send, output, receive);
  int64_t at = 0;
  for (int64_t r = 0; r < ranks(); ++r) {
    int64_t before = 0;
    for (int64_t s = 0; s < rank(); ++s) before += rows(r, s);
    for (int64_t i = 0; i < 2 * rows(r, rank()); ++i, ++at)
      ASSERT_EQ(output.data<float>()[at], value_at(r, 2 * before + i)) << r;
  }
  EXPECT_EQ(output.data<float>()[at], value_at(99, at));
}

TEST(Comm, MessagesArriveByTagAndInOrder) {
  const int right = static_cast<int>((rank() + 1) % ranks()), left = static_cast<int>((rank() + ranks() - 1) % ranks());
  const Tensor a = values_of<float>(rank(), 4), b = values_of<float>(rank(), 4, 100),
               c = values_of<float>(rank(), 4, 200);
  comm::Handle sends[] = {world().start_send(a, right, 1), world().start_send(b, right, 2),
                          world().start_send(c, right, 1)};
  Tensor x = values_of<float>(0, 4), y = values_of<float>(0, 4), z = values_of<float>(0, 4);
  world().receive(y, left, 2);
  world().receive(x, left, 1);
  world().receive(z, left, 1);
  for (auto& send : sends) send->wait();
  EXPECT_EQ(x.data<float>()[3], value_at(left, 3));
  EXPECT_EQ(y.data<float>()[3], value_at(left, 103));
  EXPECT_EQ(z.data<float>()[3], value_at(left, 203));
}

TEST(Comm, TheRingAllReduceGivesTheSameSums) {
  for (int64_t count : {1, 2, 7, 1000, 4099}) {
    Tensor ring = values_of<float>(rank(), count), own = values_of<float>(rank(), count);
    comm::ring_all_reduce(world(), ring);
    world().all_reduce(own);
    for (int64_t i = 0; i < count; ++i) ASSERT_NEAR(ring.data<float>()[i], own.data<float>()[i], 1e-5) << i;
  }
}

TEST(Comm, GroupsAreSplitByColorAndOrderedByKey) {
  // The last rank alone, the others in reverse order.
  const bool is_last = rank() == ranks() - 1;
  auto group = world().split(is_last ? 1 : 0, static_cast<int>(ranks() - rank()), "half");
  EXPECT_EQ(group->size(), is_last ? 1 : ranks() - 1);
  EXPECT_EQ(group->rank(), is_last ? 0 : ranks() - 2 - rank());
  EXPECT_EQ(group->sum(int64_t{1}), group->size());
}

TEST(Comm, ARankThatDoesNotComeIsNamed) {
  auto group = world().split(0, static_cast<int>(rank()), "late");
  group->set_deadline(0.3);
  if (rank() == 0) {  // comes to the world's barrier below, not to the group's sum
    try {
      group->sum(1.0);
      FAIL() << "nobody came";
    } catch (const base::Error& e) {
      const std::string text = e.what();
      EXPECT_NE(text.find("rank 0 ("), std::string::npos) << text;
      EXPECT_NE(text.find("all_reduce (sum) of 1 f64 in 'late'"), std::string::npos) << text;
      EXPECT_NE(text.find("no word from rank 1 ("), std::string::npos) << text;
    }
  }
  world().barrier();
  [[maybe_unused]] auto* kept = group.release();  // a call of rank 0 is still under way on it
}

TEST(Comm, AnErrorOfOneRankIsThrownOnAll) {
  auto text = [](const std::function<void()>& work) {
    try {
      comm::together(world(), work);
    } catch (const comm::JointError& e) {
      return std::string(e.is_usage() ? "usage: " : "") + e.what();
    }
    return std::string("none");
  };
  EXPECT_EQ(text([] {}), "none");
  EXPECT_EQ(text([] { base::fail_usage("all wrong"); }), "usage: all wrong");
  EXPECT_EQ(text([] { SINTER_CHECK(rank() != 1, "no disk"); }), "rank 1: no disk");
}

TEST(Comm, ARankAloneIsTheIdentity) {
  auto self = comm::make_self();
  Tensor values = values_of<float>(0, 9);
  self->all_reduce(values);
  for (int64_t i = 0; i < 9; ++i) EXPECT_EQ(values.data<float>()[i], value_at(0, i));
}

TEST(Mesh, GroupsHoldTheRanksThatDifferInOneCoordinate) {
  spec::ParallelSpec layout;
  layout.tp = ranks();
  const parallel::Mesh tensor(world(), layout);
  EXPECT_EQ(tensor.tensor().size(), ranks());
  EXPECT_EQ(tensor.data().size(), 1);
  EXPECT_EQ(tensor.gradient().size(), 1);
  EXPECT_EQ(tensor.at().tensor, rank());
  layout.tp = 1;
  layout.pp = ranks();
  const parallel::Mesh pipeline(world(), layout);
  EXPECT_EQ(pipeline.pipeline().rank(), rank());
  EXPECT_EQ(pipeline.stage().size(), 1);
  layout.pp = 1;
  EXPECT_THROW(parallel::Mesh(world(), layout), base::Error) << "fewer ranks than the launch has";
}

// Buckets must give the same bits as one sum of the whole buffer, whatever the order stretches become ready in.
TEST(Fp8Ranges, AllRanksRoundByWhatAnyOfThemSaw) {
  using kernels::Fp8Scaling;
  const Tensor rows(core::runtime({}).allocator(), {2, Fp8Scaling::kSize}, DType::f32);
  float* row = rows.data<float>() + Fp8Scaling::kSize;
  std::fill_n(rows.data<float>(), rows.num_elements(), 0.0f);
  row[Fp8Scaling::kScale] = static_cast<float>(2 + rank());
  row[Fp8Scaling::kLargest] = static_cast<float>(10 + rank());
  row[Fp8Scaling::kHistory + 3] = static_cast<float>(20 - rank());
  parallel::share_fp8_ranges(world(), rows);
  EXPECT_EQ(row[Fp8Scaling::kLargest], static_cast<float>(10 + ranks() - 1));
  EXPECT_EQ(row[Fp8Scaling::kHistory + 3], 20.0f);
  EXPECT_EQ(row[Fp8Scaling::kHistory + 2], 0.0f);
  EXPECT_EQ(row[Fp8Scaling::kScale], static_cast<float>(2 + rank())) << "made anew by the next rescale";
}

TEST(GradientReducer, BucketsEqualOneSumAndStartBehindBackward) {
  const int64_t n = 10007;
  Tensor gradients(core::runtime({}).allocator(), {n}, DType::f32);
  parallel::GradientReducer reducer(world(), gradients, 1000 * 4);
  EXPECT_EQ(reducer.num_buckets(), 11);
  for (int step = 0; step < 3; ++step) {
    for (int64_t i = 0; i < n; ++i) gradients.data<float>()[i] = value_at(rank(), i);
    reducer.begin_step();
    if (step < 2) {
      reducer.mark_ready(0, 100);  // a tied embedding's stretch may come at any time
      for (int64_t end = n; end > 100; end -= 333) reducer.mark_ready(std::max<int64_t>(end - 333, 100), end);
      EXPECT_EQ(reducer.num_overlapped(), 11);
    }
    reducer.finish();
    for (int64_t i = 0; i < n; ++i)
      ASSERT_EQ(gradients.data<float>()[i], reduced_at<float>(i, comm::ReduceOp::sum)) << i;
  }
}

}  // namespace
}  // namespace sinter

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  sinter::comm::world();
  return RUN_ALL_TESTS();
}

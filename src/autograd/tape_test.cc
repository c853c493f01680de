#include "autograd/tape.h"

#include <gtest/gtest.h>

#include "autograd/gradient.h"

namespace sinter::autograd {
namespace {

Tensor one_number(float value) { return core::make_tensor<float>(core::runtime({}).allocator(), {1}, {value}); }

TEST(Tape, RunsBackwardsAndFreesEachFunctionRightAfterIt) {
  Tape tape(Recompute::none);
  std::vector<int> order;
  auto kept = std::make_shared<int>(1);
  const std::weak_ptr<int> watched = kept;
  tape.record([&order, &watched] {
    order.push_back(1);
    EXPECT_TRUE(watched.expired()) << "what the later function held must be gone";
  });
  tape.record([&order, held = std::move(kept)] { order.push_back(2); });
  tape.backward();
  EXPECT_EQ(order, (std::vector<int>{2, 1}));
  tape.backward();
  EXPECT_EQ(order.size(), 2u) << "a tape runs once";
}

TEST(Tape, ADroppedValueIsMadeAgainOnceForAllWhoSavedIt) {
  int count = 0;
  Variable x{one_number(3), nullptr, nullptr};
  x.remade = std::make_shared<Rematerialized>([&count] {
    ++count;
    return one_number(4);
  });
  const Saved first = x.save(), second = x.save();
  EXPECT_EQ(count, 0) << "before backward asks nothing is made";
  EXPECT_EQ(first.get().data<float>()[0], 4.0f);
  EXPECT_EQ(second.get().raw(), first.get().raw());
  EXPECT_EQ(count, 1);
}

TEST(Gradient, OverwritesOnceAStepAndThenAdds) {
  Gradient gradient(one_number(7));
  EXPECT_FALSE(gradient.accumulates());
  gradient.wrote();
  EXPECT_TRUE(gradient.accumulates());
  gradient.discard();
  EXPECT_FALSE(gradient.accumulates());
}

TEST(Gradient, SquaresStandOnlyAfterAKernelThatLeftThem) {
  Gradient gradient(one_number(7), one_number(0));
  EXPECT_FALSE(gradient.has_squares());
  gradient.wrote_with_squares();
  EXPECT_TRUE(gradient.has_squares());
  EXPECT_TRUE(gradient.can_update_squares());
  gradient.wrote();  // by a kernel that knows nothing of them
  EXPECT_FALSE(gradient.has_squares());
  EXPECT_FALSE(gradient.can_update_squares());
  Gradient without(one_number(7));
  without.wrote_with_squares();
  EXPECT_FALSE(without.has_squares()) << "there is no place for them";
}

TEST(Gradient, OfAFrozenTensorStaysStale) {
  Gradient frozen;
  frozen.was_replayed();
  EXPECT_FALSE(frozen.accumulates());
}

}  // namespace
}  // namespace sinter::autograd

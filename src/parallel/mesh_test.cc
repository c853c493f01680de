#include "parallel/mesh.h"

#include <gtest/gtest.h>

#include <set>

namespace sinter::parallel {
namespace {

TEST(Mesh, EveryRankHasItsOwnCoordinatesWithTensorRanksSideBySide) {
  spec::ParallelSpec layout;
  layout.tp = 2;
  layout.cp = 2;
  layout.shard = 3;
  layout.replica = 2;
  layout.pp = 2;
  layout.ep = 4;
  std::set<std::vector<int64_t>> seen;
  for (int64_t rank = 0; rank < layout.ranks(); ++rank) {
    const Coordinates at = coordinates_of(layout, rank);
    EXPECT_EQ((((at.pipeline * 2 + at.replica) * 3 + at.shard) * 2 + at.context) * 2 + at.tensor, rank);
    EXPECT_EQ(at.data, at.replica * 3 + at.shard);
    EXPECT_EQ(at.expert, rank % 24 / 2 % 4);
    seen.insert({at.pipeline, at.data, at.context, at.tensor});
  }
  EXPECT_EQ(static_cast<int64_t>(seen.size()), layout.ranks());
  EXPECT_EQ(coordinates_of(layout, 1).tensor, 1);
}

TEST(Mesh, TheMapNamesTheAxesInUse) {
  spec::ParallelSpec layout;
  layout.tp = 2;
  layout.shard = 2;
  const std::string map = Mesh::map(layout);
  EXPECT_NE(map.find("dp of 2"), std::string::npos) << map;
  EXPECT_NE(map.find("tp of 2"), std::string::npos) << map;
  EXPECT_EQ(map.find("pp of"), std::string::npos) << map;
}

TEST(Mesh, ARankAloneIsEveryGroup) {
  auto self = comm::make_self();
  const Mesh mesh(*self);
  for (comm::Communicator* group : {&mesh.data(), &mesh.tensor(), &mesh.pipeline(), &mesh.context(), &mesh.expert(),
                                    &mesh.gradient(), &mesh.shard(), &mesh.replica(), &mesh.stage(), &mesh.model()})
    EXPECT_EQ(group->size(), 1);
  EXPECT_TRUE(mesh.is_first());
}

}  // namespace
}  // namespace sinter::parallel

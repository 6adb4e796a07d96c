// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/layout/placement.h>

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace dtensor {
namespace TEST_SOURCE {

struct Answers {
  Placement placement;
  bool is_replicate;
  bool is_shard;
  bool is_shard_1;
  bool is_strided_shard;
  bool cuts;
  bool cuts_1;
  bool is_partial;
  bool is_partial_sum;
};

TEST(Placement, PredicatesSayWhatAPlacementIs) {
  const std::vector<Answers> table = {
      // R      S      S(1)   SS     cuts   cuts1  P      P(sum)
      {Replicate(), true, false, false, false, false, false, false, false},
      {Shard(0), false, true, false, false, true, false, false, false},
      {Shard(1), false, true, true, false, true, true, false, false},
      {Shard(-1), false, true, false, false, true, false, false, false},
      {StridedShard(0, 2),
       false,
       false,
       false,
       true,
       true,
       false,
       false,
       false},
      {StridedShard(1, 2), false, false, false, true, true, true, false, false},
      {Shard(1, 64), false, true, true, false, true, true, false, false},
      {Partial(), false, false, false, false, false, false, true, true},
      {Partial("max"), false, false, false, false, false, false, true, false},
  };
  for (const Answers& row : table) {
    const Placement& p = row.placement;
    SCOPED_TRACE(&row - table.data());
    EXPECT_EQ(p.is_replicate(), row.is_replicate);
    EXPECT_EQ(p.is_shard(), row.is_shard);
    EXPECT_EQ(p.is_shard(1), row.is_shard_1);
    EXPECT_EQ(p.is_strided_shard(), row.is_strided_shard);
    EXPECT_EQ(p.is_sharded(), row.cuts);
    EXPECT_EQ(p.is_sharded(1), row.cuts_1);
    EXPECT_EQ(p.is_partial(), row.is_partial);
    EXPECT_EQ(p.is_partial(ReduceOp::kSum), row.is_partial_sum);
  }
}

TEST(Placement, DifferentPlacementsAreUnequalAndHashApart) {
  const std::vector<Placement> all = {
      Replicate(),
      Shard(0),
      Shard(1),
      Shard(-1),
      StridedShard(0, 1),
      StridedShard(0, 2),
      StridedShard(1, 2),
      Shard(0, 2),
      Shard(0, 3),
      Shard(1, 2),
      StridedShard(0, 2, 2),
      Partial("sum"),
      Partial("avg"),
      Partial("min"),
      Partial("max"),
      Partial("product"),
      Partial("band"),
      Partial("bor"),
      Partial("bxor")};
  std::set<size_t> hashes;
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = 0; j < all.size(); ++j) {
      EXPECT_EQ(all[i] == all[j], i == j) << i << " and " << j;
    }
    hashes.insert(all[i].hash());
  }
  EXPECT_EQ(hashes.size(), all.size());
}

TEST(Placement, WithDimKeepsTheKindOfShard) {
  EXPECT_EQ(Shard(0).with_dim(3), Shard(3));
  EXPECT_EQ(StridedShard(0, 4).with_dim(3), StridedShard(3, 4));
  EXPECT_EQ(Shard(0, 64).with_dim(3), Shard(3, 64));
  EXPECT_EQ(StridedShard(0, 4, 64).with_dim(3), StridedShard(3, 4, 64));
}

TEST(Placement, AUnitOfOneIsRemoved) {
  EXPECT_EQ(Shard(1, 1), Shard(1));
  EXPECT_EQ(StridedShard(1, 3, 1), StridedShard(1, 3));
  EXPECT_EQ(Shard(1, 64).with_unit(1), Shard(1));
  EXPECT_TRUE(Shard(1).is_chunk());
  EXPECT_FALSE(Shard(1, 64).is_chunk());
  EXPECT_FALSE(StridedShard(1, 3).is_chunk());
}

TEST(Placement, ReduceOpsHaveTheNamesOfPython) {
  const std::vector<std::string_view> names = {
      "sum", "avg", "min", "max", "product", "band", "bor", "bxor"};
  for (size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(to_string(static_cast<ReduceOp>(i)), names[i]);
    EXPECT_EQ(parse_reduce_op(names[i]), static_cast<ReduceOp>(i));
    EXPECT_EQ(Partial(names[i]).reduce_op(), static_cast<ReduceOp>(i));
  }
}

template <typename F>
std::string value_error_of(F f) {
  try {
    f();
  } catch (const c10::ValueError& e) {
    return e.what_without_backtrace();
  }
  return "no ValueError";
}

TEST(Placement, UnknownReduceOpErrorListsTheOps) {
  EXPECT_EQ(
      value_error_of([] { Partial("mean"); }),
      "[Partial] no such reduce op: \"mean\". Use one of sum, avg, min, max, "
      "product, band, bor, bxor.");
}

TEST(Placement, SplitFactorMustBePositive) {
  EXPECT_EQ(
      value_error_of([] { StridedShard(1, 0); }),
      "[StridedShard] the split factor must be positive: 0. Use Shard(1) for "
      "plain sharding.");
}

TEST(Placement, UnitsMustBePositive) {
  EXPECT_EQ(
      value_error_of([] { Shard(1, 0); }),
      "[Shard] the unit must be positive: 0. Use Shard(1) to allow shard "
      "boundaries between any two elements.");
  EXPECT_EQ(
      value_error_of([] { StridedShard(1, 3, -2); }),
      "[StridedShard] the unit must be positive: -2. Leave it out to allow "
      "shard boundaries between any two elements.");
}

} // namespace TEST_SOURCE
} // namespace dtensor

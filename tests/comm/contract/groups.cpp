// SPDX-License-Identifier: BSD-3-Clause
// Groups of some of the ranks, of one rank, and groups that overlap.
#include <tests/comm/contract/contract.h>

#include <algorithm>

namespace dtensor {
namespace TEST_SOURCE {

using namespace test;

at::Tensor of_rank(int64_t rank, int64_t numel = 1) {
  return there(torch::full({numel}, rank));
}

// Every second rank, in falling order. The other ranks continue without
// waiting.
CONTRACT_CASE(GroupsFollowTheirOwnOrder, Needs::kPeers) {
  std::vector<int64_t> some;
  for (size_t i = group.ranks().size(); i-- > 0;) {
    if (i % 2 == (group.ranks().size() - 1) % 2) {
      some.push_back(group.ranks()[i]);
    }
  }
  const int64_t me = get_rank();
  if (std::count(some.begin(), some.end(), me) == 0) {
    return;
  }
  const GroupPtr part = new_group(some, "some");
  EXPECT_EQ(part->label(), "some");
  EXPECT_EQ(part->ranks(), some);
  EXPECT_EQ(some[static_cast<size_t>(part->rank())], me);
  expect_equal(part->all_gather(of_rank(me), 0), there(torch::tensor(some)));
  expect_equal(part->broadcast(of_rank(me), 0), of_rank(some.front()));
  EXPECT_EQ(new_group(some, "again")->label(), "again");
}

// Rounds in groups of adjacent ranks, which share a process if each process has
// two ranks, and in the group of all ranks.
CONTRACT_CASE(GroupsOfNeighbours, Needs::kPeers) {
  const auto& ranks = group.ranks();
  const auto me = static_cast<size_t>(group.rank());
  const size_t first = me / 2 * 2;
  const GroupPtr pair = first + 1 < ranks.size()
      ? new_group({ranks[first], ranks[first + 1]}, "tp")
      : new_group({ranks[first]}, "alone");
  for (const int64_t numel : {1, 3000}) {
    for (int round = 0; round < 20; ++round) {
      const at::Tensor x = of_rank(group.rank(), numel);
      expect_equal(
          pair->broadcast(x, pair->size() - 1),
          of_rank(static_cast<int64_t>(first) + pair->size() - 1, numel));
      expect_equal(
          group.all_reduce(x, ReduceOp::kMax),
          of_rank(group.size() - 1, numel));
    }
  }
}

// The rows and columns of a mesh with two rows.
CONTRACT_CASE(RowsAndColumnsDoNotMix, Needs::kPeers) {
  const int64_t columns = group.size() / 2;
  const int64_t row = group.rank() / columns;
  if (row > 1) {
    return;
  }
  const int64_t column = group.rank() % columns;
  std::vector<int64_t> in_row;
  for (int64_t i = 0; i < columns; ++i) {
    in_row.push_back(group.ranks()[static_cast<size_t>(row * columns + i)]);
  }
  const auto rank_of = [&](int64_t i) {
    return group.ranks()[static_cast<size_t>(i)];
  };
  const GroupPtr tp = new_group(in_row, "tp");
  const GroupPtr dp =
      new_group({rank_of(column), rank_of(column + columns)}, "tp");
  EXPECT_EQ(tp->rank(), column);
  EXPECT_EQ(dp->rank(), row);
  for (int64_t round = 0; round < 300; ++round) {
    const at::Tensor x = there(torch::full({2}, group.rank() + round));
    const auto in_tp = tp->all_reduce(x, ReduceOp::kSum);
    const auto in_all = dp->all_reduce(in_tp, ReduceOp::kSum);
    const int64_t begin = row * columns + round;
    const int64_t total = 2 * columns;
    ASSERT_EQ(
        in_tp[0].item<int64_t>(),
        columns * begin + columns * (columns - 1) / 2);
    ASSERT_EQ(
        in_all[1].item<int64_t>(), total * round + total * (total - 1) / 2);
  }
}

// While a group is made, a helper thread may progress the collective.
CONTRACT_CASE(GroupsAreMadeDuringACollective, Needs::kPeers) {
  const int64_t last = group.size() - 1;
  for (int round = 0; round < 5; ++round) {
    const auto pending =
        group.all_reduce_async(of_rank(group.rank(), 30), ReduceOp::kMax);
    const GroupPtr other = new_group(group.ranks(), "other");
    expect_equal(
        other->all_reduce(of_rank(other->rank()), ReduceOp::kMax),
        of_rank(last));
    expect_equal(pending->wait(), of_rank(last, 30));
  }
}

CONTRACT_CASE(OneRankReturnsTheInputItself, Needs::kNothing) {
  const GroupPtr alone = new_group({get_rank()}, "alone");
  const at::Tensor x = full({2, 2}, 1);
  EXPECT_TRUE(alone->all_reduce(x, ReduceOp::kSum).is_same(x));
  EXPECT_TRUE(alone->all_gather(x, 0).is_same(x));
  EXPECT_TRUE(alone->reduce_scatter(x, 0, ReduceOp::kSum).is_same(x));
  EXPECT_TRUE(alone->all_to_all({x})[0].is_same(x));
  EXPECT_TRUE(alone->shard_dim_alltoall(x, 0, 1).is_same(x));
  EXPECT_TRUE(alone->broadcast(x, 0).is_same(x));
  EXPECT_TRUE(alone->scatter({x}, x, 0).is_same(x));
  EXPECT_TRUE(alone->gather(x, 0)[0].is_same(x));
  EXPECT_EQ(alone->all_gather_strings("a"), std::vector<std::string>{"a"});
  alone->barrier();
  EXPECT_TRUE(alone->all_reduce_async(x, ReduceOp::kSum)->wait().is_same(x));
  EXPECT_TRUE(alone->all_gather_async(x, 0, 2)->wait().is_same(x));
  EXPECT_TRUE(alone->shard_dim_alltoall_async(x, 0, 1)->wait().is_same(x));
  expect_equal(alone->all_to_all_async(x, {4}, {4})->wait(), full({4}, 1));
  const at::Tensor out = full({2, 2}, 0);
  const auto part = alone->reduce_scatter_async(x, 0, ReduceOp::kSum, out);
  EXPECT_TRUE(part->wait().is_same(out));
  expect_equal(out, x);
}

} // namespace TEST_SOURCE
} // namespace dtensor

// SPDX-License-Identifier: BSD-3-Clause
// shard_dim_alltoall(): from a tensor sharded along one dimension to the same
// tensor sharded along another. The expected result is torch.chunk of the full
// tensor.
#include <dtensor/comm/ranks.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "collective_inputs.h"
#include "expect_error.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace test;

at::Tensor chunk_of(const at::Tensor& whole, int64_t dim, int64_t rank) {
  const auto chunks = whole.chunk(get_world_size(), dim);
  if (rank < static_cast<int64_t>(chunks.size())) {
    return chunks[static_cast<size_t>(rank)];
  }
  return whole.narrow(dim, 0, 0);
}

class ShardDimAllToAll : public testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(
    Ranks,
    ShardDimAllToAll,
    testing::Values(1, 2, 3, 4, 8));

TEST_P(ShardDimAllToAll, CutsAlongTheOtherDimension) {
  // Shapes below and above the inline size, divisible and not, empty for some
  // ranks or for all.
  const std::vector<std::vector<int64_t>> shapes = {
      {8, 8},
      {5, 7},
      {2, 3, 1},
      {0, 4},
      {1, 1},
      {9, 4, 8},
      {64, 70},
      {33, 2, 129}};
  run_ranks(GetParam(), [&](int64_t rank) {
    for (const auto& shape : shapes) {
      const auto whole = input_of(3, shape, at::kDouble);
      for (int64_t from = 0; from < whole.dim(); ++from) {
        for (int64_t to = 0; to < whole.dim(); ++to) {
          if (from == to) {
            continue;
          }
          SCOPED_TRACE(c10::str(shape, " from ", from, " to ", to));
          const auto mine = chunk_of(whole, from, rank); // not contiguous
          const auto got =
              world()->shard_dim_alltoall(mine, from, to - whole.dim());
          expect_equal(got, chunk_of(whole, to, rank).contiguous());
        }
      }
    }
  });
}

TEST_P(ShardDimAllToAll, TakesEveryDtype) {
  run_ranks(GetParam(), [](int64_t rank) {
    for (const at::ScalarType dtype : kEveryDtype) {
      const auto whole = input_of(1, {6, 5}, dtype);
      expect_equal(
          world()->shard_dim_alltoall(chunk_of(whole, 0, rank), 0, 1),
          chunk_of(whole, 1, rank).contiguous());
    }
  });
}

template <typename Error, typename Fn>
std::string on_two(const Fn& fn) {
  return error_of<Error>([&] {
    run_ranks(2, [&](int64_t rank) { fn(*new_group({0, 1}, "tp"), rank); });
  });
}

TEST(ShardDimAllToAllErrors, NameTheDimensions) {
  EXPECT_EQ(
      on_two<c10::ValueError>([](Group& group, int64_t) {
        group.shard_dim_alltoall(torch::ones({2, 2}), 1, -1);
      }),
      "[run_ranks] 2 of 2 ranks failed. every rank: [shard_dim_alltoall] "
      "gather_dim and shard_dim are both 1. Pass two different dimensions.");
  EXPECT_EQ(
      on_two<c10::IndexError>([](Group& group, int64_t) {
        group.shard_dim_alltoall(torch::ones({2, 2}), 0, 2);
      }),
      "[run_ranks] 2 of 2 ranks failed. every rank: [shard_dim_alltoall] no "
      "dimension 2 in a tensor of 2 dimensions. Use one from -2 to 1.");
}

TEST(ShardDimAllToAllErrors, NameTheCallsOfTheRanks) {
  const std::string head =
      "[run_ranks] 2 of 2 ranks failed. every rank: [all_to_all] ranks of "
      "\"tp\" disagree: rank 0 calls all_to_all of ";
  const std::string tail =
      ". Call the same collective with the same sizes on every rank.";
  for (const int64_t size : {2, 2000}) {
    EXPECT_EQ(
        on_two<c10::ValueError>([&](Group& group, int64_t rank) {
          group.shard_dim_alltoall(torch::ones({size, 2}), rank, 1 - rank);
        }),
        c10::str(
            head,
            "f32[",
            size,
            ", 2] from dim 0 to dim 1; rank 1 calls all_to_all of f32[",
            size,
            ", 2] from dim 1 to dim 0",
            tail));
    EXPECT_EQ(
        on_two<c10::ValueError>([&](Group& group, int64_t rank) {
          group.shard_dim_alltoall(torch::ones({size, 2 + rank}), 0, 1);
        }),
        c10::str(
            head,
            "f32[",
            size,
            ", 2] from dim 0 to dim 1; rank 1 calls all_to_all of f32[",
            size,
            ", 3] from dim 0 to dim 1",
            tail));
  }
  EXPECT_EQ(
      on_two<c10::ValueError>([](Group& group, int64_t rank) {
        const auto x = torch::ones({2, 2});
        if (rank == 0) {
          group.all_to_all({x, x});
        } else {
          group.shard_dim_alltoall(x, 0, 1);
        }
      }),
      head +
          "f32[2, 2], f32[2, 2]; rank 1 calls all_to_all of f32[2, 2] from "
          "dim 0 to dim 1" +
          tail);
}

} // namespace TEST_SOURCE
} // namespace dtensor

// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/checkpoint/write_plan_impl.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>

namespace dtensor {
namespace TEST_SOURCE {

using detail::HeldTensor;
using detail::plan_writes;

HeldTensor held(
    Sizes sizes,
    std::vector<int64_t> mesh,
    Placements placements,
    at::ScalarType dtype = at::kFloat) {
  int64_t ranks = 1;
  for (const auto n : mesh) {
    ranks *= n;
  }
  std::vector<int64_t> all(static_cast<size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  return {dtype, sizes, mesh, placements, {all}};
}

// Checks that each element of a two-dimensional tensor is written exactly once,
// by a rank that holds it at that local offset.
void expect_all_once(const HeldTensor& tensor, int64_t ranks) {
  const auto plan = plan_writes({tensor}, ranks);
  std::map<std::pair<int64_t, int64_t>, int64_t> times;
  for (const auto& box : plan.boxes) {
    const Sizes coordinate = [&] {
      Sizes c(tensor.mesh_shape.size(), 0);
      auto index = box.rank;
      for (size_t d = c.size(); d-- > 0; index /= tensor.mesh_shape[d]) {
        c[d] = index % tensor.mesh_shape[d];
      }
      return c;
    }();
    for (int64_t d = 0; d < 2; ++d) {
      const auto k = static_cast<size_t>(d);
      std::vector<int64_t> mine;
      for (const auto& interval : local_intervals(
               tensor.sizes[k],
               d,
               tensor.mesh_shape,
               tensor.placements,
               coordinate)) {
        for (auto i = interval.begin; i < interval.end; ++i) {
          mine.push_back(i);
        }
      }
      for (int64_t i = 0; i < box.sizes[k]; ++i) {
        ASSERT_EQ(
            mine.at(static_cast<size_t>(box.local_offsets[k] + i)),
            box.offsets[k] + i);
      }
    }
    for (int64_t i = 0; i < box.sizes[0]; ++i) {
      for (int64_t j = 0; j < box.sizes[1]; ++j) {
        ++times[{box.offsets[0] + i, box.offsets[1] + j}];
      }
    }
  }
  EXPECT_EQ(static_cast<int64_t>(times.size()), numel(tensor.sizes));
  for (const auto& item : times) {
    EXPECT_EQ(item.second, 1);
  }
}

TEST(WritePlan, WritesEveryElementOnce) {
  for (const Sizes& sizes : {Sizes{8, 6}, Sizes{7, 5}, Sizes{1, 3}}) {
    expect_all_once(held(sizes, {4}, {Shard(0)}), 4);
    expect_all_once(held(sizes, {4}, {Replicate()}), 4);
    expect_all_once(held(sizes, {3}, {Shard(1)}), 3);
    expect_all_once(held(sizes, {2, 2}, {Shard(1), Replicate()}), 4);
    expect_all_once(held(sizes, {2, 2}, {Shard(0), Shard(0)}), 4);
    expect_all_once(held(sizes, {2, 2}, {StridedShard(0, 2), Shard(0)}), 4);
    expect_all_once(held(sizes, {2}, {StridedShard(0, 3)}), 2);
    expect_all_once(held(sizes, {3}, {Shard(0, 2)}), 3);
  }
}

// A rank's file contains one box of each tensor.
TEST(WritePlan, PutsBoxesOfATensorInSeveralFiles) {
  const auto plan = plan_writes({held({12, 2}, {2}, {StridedShard(0, 3)})}, 2);
  EXPECT_EQ(plan.files, 3);
  ASSERT_EQ(plan.boxes.size(), 6);
  EXPECT_EQ(plan.boxes[0].file, 0);
  EXPECT_EQ(plan.boxes[1].file, 1);
  EXPECT_EQ(plan.boxes[2].file, 2);
  EXPECT_EQ(plan.boxes[1].offsets, (Sizes{4, 0}));
  EXPECT_EQ(plan.boxes[1].local_offsets, (Sizes{2, 0}));
}

TEST(WritePlan, GivesSmallTensorsToTheRankWithFewestBytes) {
  std::vector<HeldTensor> tensors;
  for (int64_t i = 0; i < 9; ++i) {
    tensors.push_back(held({10}, {3}, {Replicate()}));
  }
  std::vector<int64_t> count(3, 0);
  for (const auto& box : plan_writes(tensors, 3).boxes) {
    ++count[static_cast<size_t>(box.rank)];
  }
  EXPECT_EQ(count, (std::vector<int64_t>{3, 3, 3}));
}

TEST(WritePlan, CutsLargeOnesBetweenAll) {
  const auto plan = plan_writes({held({1 << 20}, {3}, {Replicate()})}, 3);
  ASSERT_EQ(plan.boxes.size(), 3);
  EXPECT_EQ(plan.boxes[2].offsets[0], 2 * 349526);
  // Writers get at least 1 MB each, so 2.5 MB are split between two.
  EXPECT_EQ(
      plan_writes({held({655360}, {3}, {Replicate()})}, 3).boxes.size(), 2);
}

// A dimension is cut between as many writers as it has elements.
TEST(WritePlan, CutsShortDimensionsBetweenFew) {
  const auto plan = plan_writes({held(Sizes(20, 2), {4}, {Replicate()})}, 4);
  ASSERT_EQ(plan.boxes.size(), 2);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(plan.boxes[i].offsets[0], static_cast<int64_t>(i));
    EXPECT_EQ(plan.boxes[i].sizes[0], 1);
    EXPECT_EQ(numel(plan.boxes[i].sizes), 1 << 19);
  }
}

// Two mesh rows share the writing, because each holds the full tensor.
TEST(WritePlan, SharesBetweenMeshes) {
  auto tensor = held({1 << 19, 2}, {2}, {Shard(0)});
  tensor.meshes = {{0, 1}, {2, 3}};
  const auto plan = plan_writes({tensor}, 4);
  ASSERT_EQ(plan.boxes.size(), 4);
  for (int64_t rank = 0; rank < 4; ++rank) {
    const auto& box = plan.boxes[static_cast<size_t>(rank)];
    EXPECT_EQ(box.rank, rank);
    EXPECT_EQ(box.sizes, (Sizes{1 << 17, 2}));
    EXPECT_EQ(box.local_offsets[0], rank < 2 ? 0 : 1 << 17);
  }
}

TEST(WritePlan, MentionsWhatHasNoElements) {
  const auto plan = plan_writes({held({0, 3}, {2}, {Shard(1)})}, 2);
  ASSERT_EQ(plan.boxes.size(), 1);
  EXPECT_EQ(plan.boxes[0].sizes, (Sizes{0, 3}));
}

} // namespace TEST_SOURCE
} // namespace dtensor

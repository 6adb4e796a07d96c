// SPDX-License-Identifier: BSD-3-Clause
// Groups, meshes and results in flight raise an error immediately if another
// rank uses them, or if they are used after their ranks have ended.
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/comm/ranks.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <numeric>

#include "expect_error.h"

namespace dtensor {
namespace TEST_SOURCE {

using test::error_of;

const char* const kAdvice =
    ". Build one model per rank, in the function that the ranks run, and "
    "return only plain tensors from it.";

GroupPtr tp() {
  std::vector<int64_t> ranks(static_cast<size_t>(get_world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return new_group(ranks, "tp");
}

// All collectives of a group, with the prefix of their errors.
std::vector<std::pair<std::string, std::function<void(Group&)>>> collectives() {
  const at::Tensor x = torch::ones({4, 4});
  return {
      {"all_reduce", [=](Group& g) { g.all_reduce(x, ReduceOp::kSum); }},
      {"all_gather", [=](Group& g) { g.all_gather(x, 0); }},
      {"reduce_scatter",
       [=](Group& g) { g.reduce_scatter(x, 0, ReduceOp::kSum); }},
      {"all_to_all",
       [=](Group& g) {
         g.all_to_all({x, x});
       }},
      {"shard_dim_alltoall", [=](Group& g) { g.shard_dim_alltoall(x, 0, 1); }},
      {"all_reduce_async",
       [=](Group& g) { g.all_reduce_async(x, ReduceOp::kSum); }},
      {"all_gather_async", [=](Group& g) { g.all_gather_async(x, 0, 8); }},
      {"reduce_scatter_async",
       [=](Group& g) { g.reduce_scatter_async(x, 0, ReduceOp::kSum); }},
      {"shard_dim_alltoall_async",
       [=](Group& g) { g.shard_dim_alltoall_async(x, 0, 1); }},
      {"broadcast", [=](Group& g) { g.broadcast(x, 0); }},
      {"scatter",
       [=](Group& g) {
         g.scatter({x, x}, x, 0);
       }},
      {"gather", [=](Group& g) { g.gather(x, 0); }},
      {"send", [=](Group& g) { g.send(x, 1 - g.rank()); }},
      {"recv", [=](Group& g) { g.recv(x, 1 - g.rank()); }},
      {"barrier", [=](Group& g) { g.barrier(); }},
      {"all_gather_strings", [=](Group& g) { g.all_gather_strings("x"); }}};
}

// Returns rank 0's group, which outlives its ranks.
GroupPtr left_behind() {
  GroupPtr group;
  run_ranks(2, [&](int64_t rank) {
    const GroupPtr mine = tp();
    mine->barrier();
    if (rank == 0) {
      group = mine;
    }
  });
  return group;
}

TEST(ForeignGroup, OfAnotherRankIsRefusedByEveryCollective) {
  for (const auto& entry : collectives()) {
    const auto& name = entry.first;
    const auto& call = entry.second;
    GroupPtr of_rank_0;
    std::string text;
    run_ranks(2, [&](int64_t rank) {
      const GroupPtr mine = tp();
      if (rank == 0) {
        of_rank_0 = mine;
      }
      mine->barrier();
      if (rank == 1) {
        text = error_of([&] { call(*of_rank_0); });
      }
    });
    EXPECT_EQ(
        text,
        "[" + name + "] group \"tp\" belongs to rank 0, but this is rank 1" +
            kAdvice);
  }
}

TEST(ForeignGroup, OfEndedRanksIsRefusedByEveryCollective) {
  const GroupPtr group = left_behind();
  for (const auto& entry : collectives()) {
    const auto& name = entry.first;
    const auto& call = entry.second;
    const auto whose = "[" + name +
        "] group \"tp\" belongs to rank 0 of a run_ranks that has ended, but "
        "this ";
    EXPECT_EQ(
        error_of([&] { call(*group); }),
        whose + "thread is not a rank" + kAdvice);
    std::string text;
    run_ranks(2, [&](int64_t rank) {
      if (rank == 0) {
        text = error_of([&] { call(*group); });
      }
    });
    EXPECT_EQ(text, whose + "is rank 0" + kAdvice);
  }
}

TEST(ForeignGroup, MadeOutsideOfRanksIsRefusedInside) {
  const GroupPtr group = new_group({0}, "alone");
  EXPECT_EQ(
      error_of([&] { run_ranks(2, [&] { group->barrier(); }); }),
      std::string("[run_ranks] 2 of 2 ranks failed. rank 0: [barrier] group "
                  "\"alone\" was made outside of ranks, but this is rank 0") +
          kAdvice +
          "; rank 1: [barrier] group \"alone\" was made outside of ranks, but "
          "this is rank 1" +
          kAdvice);
}

TEST(ForeignGroup, IsRefusedInAThreadThatARankStarts) {
  run_ranks(2, [] {
    const GroupPtr group = tp();
    std::string text;
    std::thread([&] { text = error_of([&] { group->barrier(); }); }).join();
    EXPECT_EQ(
        text,
        "[barrier] group \"tp\" belongs to rank " + std::to_string(get_rank()) +
            ", but this thread is not a rank" + kAdvice);
  });
}

TEST(ForeignMesh, OfAnotherRankIsAnotherMesh) {
  DeviceMesh of_rank_0;
  run_ranks(2, [&](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    if (rank == 0) {
      of_rank_0 = mesh;
    }
    get_group(mesh).barrier();
    EXPECT_EQ(mesh == of_rank_0, rank == 0);
    EXPECT_EQ(mesh == init_device_mesh(at::kCPU, {2}, {"tp"}), true);
  });
}

TEST(ForeignMesh, OfEndedRanksIsNoMeshOfLaterOnes) {
  static DeviceMesh kept; // as a program might keep it
  run_ranks(2, [](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    if (rank == 0) {
      kept = mesh;
    }
  });
  EXPECT_EQ(kept.size(), 2); // inspection is allowed
  std::string text;
  run_ranks(2, [&](int64_t rank) {
    if (rank == 0) {
      EXPECT_FALSE(kept == init_device_mesh(at::kCPU, {2}, {"tp"}));
      text = error_of([] { get_group(kept).barrier(); });
    }
  });
  EXPECT_EQ(
      text,
      std::string("[barrier] group \"tp\" belongs to rank 0 of a run_ranks "
                  "that has ended, but this is rank 0") +
          kAdvice);
  EXPECT_EQ(
      error_of([] { kept.flatten("all"); }),
      std::string("[DeviceMesh::flatten] the mesh belongs to rank 0 of a "
                  "run_ranks that has ended, but this thread is not a rank") +
          kAdvice);
  kept = DeviceMesh();
}

TEST(ForeignResult, InFlightIsRefusedToOtherRanks) {
  PendingPtr of_rank_0;
  std::string text;
  run_ranks(2, [&](int64_t rank) {
    const GroupPtr group = tp();
    const auto sum = group->all_reduce_async(torch::ones({4}), ReduceOp::kSum);
    if (rank == 0) {
      of_rank_0 = sum;
    }
    group->barrier();
    if (rank == 1) {
      text = error_of([&] { of_rank_0->wait(); });
    }
  });
  EXPECT_EQ(
      text,
      std::string("[Pending] a result in flight on \"tp\" belongs to rank 0, "
                  "but this is rank 1") +
          kAdvice);
  // All ranks had entered the collective, so its result is available after they
  // have ended.
  EXPECT_TRUE(of_rank_0->wait().equal(torch::full({4}, 2.0F)));
}

TEST(ForeignResult, ThatCannotCompleteIsRefused) {
  PendingPtr of_rank_0;
  run_ranks(2, [&](int64_t rank) {
    if (rank == 0) {
      of_rank_0 = tp()->all_reduce_async(torch::ones({4}), ReduceOp::kSum);
    }
  });
  EXPECT_EQ(
      error_of([&] { of_rank_0->wait(); }),
      std::string("[Pending] a result in flight on \"tp\" belongs to rank 0 of "
                  "a run_ranks that has ended, but this thread is not a rank") +
          kAdvice);
}

} // namespace TEST_SOURCE
} // namespace dtensor

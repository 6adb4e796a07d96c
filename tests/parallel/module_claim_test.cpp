// SPDX-License-Identifier: BSD-3-Clause
// A module belongs to the rank that parallelizes it.
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/comm/ranks.h>
#include <dtensor/parallel/distribute_module.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <functional>

#include "modules.h"

namespace dtensor::test_modules {
namespace TEST_SOURCE {

std::string text_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "nothing was thrown";
}

DeviceMesh tp_mesh() {
  return init_device_mesh(at::kCPU, {get_world_size()}, {"tp"});
}

// Expects that one rank succeeds, the others throw, and none waits.
void expect_refused(const std::function<void(MlpImpl&)>& make_parallel) {
  for (int i = 0; i < 20; ++i) {
    Mlp model(4, 6);
    const auto text = text_of([&] {
      run_ranks(
          3,
          [&] { make_parallel(*model); },
          {.timeout = std::chrono::seconds(60)});
    });
    EXPECT_NE(text.find(" belongs to rank "), text.npos) << text;
    EXPECT_NE(text.find(". Build one model per rank, "), text.npos) << text;
    EXPECT_EQ(text.find(" ms on "), text.npos) << text;
  }
}

TEST(SharedModule, MadeParallelByAllRanksIsRefused) {
  expect_refused(
      [](MlpImpl& model) { parallelize_module(model, tp_mesh(), mlp_plan()); });
}

TEST(SharedModule, CutByAllRanksWithoutCommunicationIsRefused) {
  expect_refused([](MlpImpl& model) {
    parallelize_module(
        model, tp_mesh(), mlp_plan(), {.src_data_rank = std::nullopt});
  });
}

TEST(SharedModule, DistributedByAllRanksIsRefused) {
  expect_refused([](MlpImpl& model) { distribute_module(model, tp_mesh()); });
  expect_refused([](MlpImpl& model) {
    distribute_parameter(model.w1->weight, tp_mesh(), {Shard(0)});
  });
}

TEST(SharedModule, OfEndedRanksIsRefused) {
  Mlp kept(nullptr);
  run_ranks(2, [&](int64_t rank) {
    Mlp model(4, 6);
    parallelize_module(*model, tp_mesh(), mlp_plan());
    if (rank == 0) {
      kept = model;
    }
  });
  const std::string whose =
      " belongs to rank 0 of a run_ranks that has ended, but this ";
  const auto forward = [&] { kept->forward(torch::ones({2, 4})); };
  const auto outside = text_of(forward);
  EXPECT_NE(outside.find(whose + "thread is not a rank"), std::string::npos)
      << outside;
  std::string texts[3];
  run_ranks(2, [&](int64_t rank) {
    if (rank == 0) {
      texts[0] = text_of(forward);
      texts[1] =
          text_of([&] { parallelize_module(*kept, tp_mesh(), mlp_plan()); });
      texts[2] = text_of([&] {
        distribute_parameter(kept->w1->weight, tp_mesh(), {Shard(0)});
      });
    }
  });
  for (const auto& text : texts) {
    EXPECT_NE(text.find(whose + "is rank 0"), std::string::npos) << text;
  }
}

TEST(SharedModule, CalledByAnotherRankIsRefused) {
  Mlp of_rank_0(nullptr);
  std::string text;
  run_ranks(2, [&](int64_t rank) {
    const auto mesh = tp_mesh();
    Mlp model(4, 6);
    parallelize_module(*model, mesh, mlp_plan());
    if (rank == 0) {
      of_rank_0 = model;
    }
    get_group(mesh).barrier();
    if (rank == 1) {
      text = text_of([&] { of_rank_0->forward(torch::ones({2, 4})); });
    }
    get_group(mesh).barrier();
  });
  EXPECT_NE(
      text.find(" belongs to rank 0, but this is rank 1. Build one model per "
                "rank, in the function"),
      std::string::npos)
      << text;
}

TEST(SharedModule, MeshOfEndedRanksIsRefused) {
  DeviceMesh kept;
  run_ranks(2, [&](int64_t rank) {
    const auto mesh = tp_mesh();
    if (rank == 0) {
      kept = mesh;
    }
  });
  EXPECT_EQ(
      text_of([&] {
        Mlp model(4, 6);
        parallelize_module(*model, kept, mlp_plan());
      }),
      "[parallelize_module] mesh (tp=2) belongs to rank 0 of a run_ranks that "
      "has ended, but this thread is not a rank. Build one model per rank, in "
      "the function that the ranks run, and return only plain tensors from "
      "it.");
}

} // namespace TEST_SOURCE
} // namespace dtensor::test_modules

// SPDX-License-Identifier: BSD-3-Clause
// Models that outlive a run of their ranks, and backward passes on another
// thread of a rank.
#include <dtensor/debug/comm_debug_mode.h>
#include <dtensor/parallel/sequence_parallel.h>
#include <dtensor/random/random.h>
#include <tests/parallel/modules.h>

#include <future>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_modules;

at::Tensor trained(Mlp& model, uint64_t step) {
  torch::optim::SGD sgd(model->parameters(), 0.1);
  const auto y = model->forward(uniform({4, 6}, step));
  y.square().sum().backward();
  sgd.step();
  return y.detach();
}

// A model is created in one run and trained in later runs, each on another
// thread.
TEST(LivingRanksTest, TrainAModelOverManyRuns) {
  auto plain = filled(Mlp(6, 7));
  std::vector<Mlp> models(2, Mlp(nullptr));
  Ranks ranks(2);
  ranks.run([&](int64_t rank) {
    auto& mine = models[static_cast<size_t>(rank)];
    mine = filled(Mlp(6, 7));
    parallelize_module(
        *mine, init_device_mesh(at::kCPU, {2}, {"tp"}), mlp_plan());
  });
  for (uint64_t step = 0; step < 3; ++step) {
    const auto truth = trained(plain, step);
    const auto step_on_ranks = [&] {
      ranks.run([&](int64_t rank) {
        auto& mine = models[static_cast<size_t>(rank)];
        expect_close(trained(mine, step), truth, "output", 1e-10);
      });
    };
    std::async(std::launch::async, step_on_ranks).get();
  }
  models.clear();
}

// The random stream of DTensors belongs to the rank. It continues in later
// runs, and a seed set in one run applies to the next.
TEST(LivingRanksTest, DrawRandomDTensorsOn) {
  std::vector<at::Tensor> drawn(4);
  const auto draw = [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    return full_tensor(dtensor::rand({4, 3}, mesh, {Shard(0)}));
  };
  Ranks ranks(2);
  const auto draw_into = [&](size_t i) {
    ranks.run([&](int64_t rank) {
      const auto mine = draw();
      if (rank == 0) {
        drawn[i] = mine;
      }
    });
  };
  ranks.run([] { torch::manual_seed(5); });
  draw_into(0);
  draw_into(1);
  ranks.run([] { torch::manual_seed(5); });
  draw_into(2);
  run_ranks(2, [&](int64_t rank) {
    torch::manual_seed(5);
    draw();
    const auto second = draw();
    if (rank == 0) {
      drawn[3] = second;
    }
  });
  EXPECT_FALSE(torch::equal(drawn[0], drawn[1]));
  EXPECT_TRUE(torch::equal(drawn[0], drawn[2]));
  EXPECT_TRUE(torch::equal(drawn[1], drawn[3]));
}

TEST(LivingRanksTest, LetGoOfWhatTheyHad) {
  std::weak_ptr<World> world;
  {
    Ranks ranks(2);
    ranks.run([&](int64_t rank) {
      auto model = filled(Mlp(6, 7));
      parallelize_module(
          *model, init_device_mesh(at::kCPU, {2}, {"tp"}), mlp_plan());
      trained(model, 1);
      if (rank == 0) {
        world = this_world();
      }
    });
    EXPECT_FALSE(world.expired());
  }
  EXPECT_TRUE(world.expired());
}

// A Partial gradient is reduced at the end of the pass, outside of any node, so
// the rank must be restored there.
TEST(BackwardInAnotherThread, IsTheRanks) {
  const auto whole = uniform({2, 4, 6}, 3);
  auto plain = filled(torch::nn::LayerNorm(torch::nn::LayerNormOptions({6})));
  plain->forward(whole).square().sum().backward();
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    auto mine = filled(torch::nn::LayerNorm(torch::nn::LayerNormOptions({6})));
    parallelize_module(*mine, mesh, SequenceParallel());
    const auto x = distribute_tensor(whole, mesh, {Shard(1)}, std::nullopt);
    const auto loss = mine->forward(x).square().sum();
    const auto one = torch::ones_like(loss); // created by no node
    const CommDebugMode comm;
    std::async(std::launch::async, [&] { loss.backward(one); }).get();
    EXPECT_EQ(comm.total({.module = "gradients"}).count, 1);
    for (const auto& item : mine->named_parameters()) {
      EXPECT_EQ(layout_of(item.value().grad()), Replicate());
      expect_close(
          item.value().grad(),
          plain->named_parameters()[item.key()].grad(),
          item.key(),
          1e-10);
    }
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor

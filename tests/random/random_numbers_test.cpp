// SPDX-License-Identifier: BSD-3-Clause
// One test per sentence of docs/concepts/random.md.
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <sstream>

#include "on_each_rank.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace test_random;
namespace nn = torch::nn;

void expect_equal(const Tensors& a, const Tensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(at::equal(a[i], b[i])) << "tensor " << i;
  }
}

TEST(RandomNumbers, ThreadsBeginAsTheCaller) {
  torch::manual_seed(1);
  torch::rand({3});
  const auto state = get_random_state();
  const auto truth = replicated_draws();
  set_random_state(state);
  expect_equal(expect_alike(3, replicated_draws), truth);
}

TEST(RandomNumbers, AWorldOfOneLeavesTheGeneratorAlone) {
  torch::manual_seed(2);
  const auto truth = replicated_draws();
  torch::manual_seed(2);
  init_process_group({.rank = 0, .world_size = 1});
  expect_equal(replicated_draws(), truth);
  destroy_process_group();
}

TEST(RandomNumbers, TheCallerGoesOnWhereRankZeroStopped) {
  torch::manual_seed(3);
  torch::rand({5});
  const auto truth = replicated_draws();
  torch::manual_seed(3);
  run_ranks(3, [] { torch::rand({5}); });
  expect_equal(replicated_draws(), truth);
}

/// A world without communication.
class SilentWorld final : public World {
 public:
  SilentWorld(int64_t rank, int64_t size) : World(rank, size, "silent world") {}

 protected:
  GroupBackendPtr make_backend(GroupMembers) override {
    ADD_FAILURE() << "the ranks communicate";
    return nullptr;
  }
};

TEST(RandomNumbers, RanksOfYourOwnWorldDoNotSynchronize) {
  torch::manual_seed(5);
  const auto truth = torch::rand({8}).split(4);
  torch::manual_seed(5);
  for (const int64_t rank : {0, 1}) {
    const auto world = std::make_shared<SilentWorld>(rank, 2);
    const WorldScope scope(world);
    EXPECT_TRUE(at::equal(torch::rand({4}), truth[static_cast<size_t>(rank)]));
    world->end();
  }
}

TEST(RandomNumbers, GroupsChangeNothing) {
  torch::manual_seed(4);
  const auto truth = replicated_draws();
  torch::manual_seed(4);
  const auto mine = expect_alike(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
    get_group(mesh["tp"]).barrier();
    const auto half = get_rank() / 2 * 2;
    new_group({half, half + 1}, "half")->barrier();
    return replicated_draws();
  });
  expect_equal(mine, truth);
}

TEST(RandomNumbers, OneBroadcastMakesRanksAgree) {
  expect_alike(3, [] {
    torch::manual_seed(static_cast<uint64_t>(get_rank()));
    torch::rand({get_rank() + 1});
    const auto mesh = line_of_ranks();
    set_random_state(get_group(mesh).broadcast(get_random_state(), 0));
    auto all = replicated_draws();
    all.push_back(DTensor(randn({4}, mesh)).to_local());
    return all;
  });
}

TEST(RandomNumbers, DTensorsAreTheSameOnAllRanks) {
  expect_alike(3, [] {
    return Tensors{
        DTensor(randn({5, 3}, line_of_ranks(), {Replicate()})).to_local(),
        full_tensor(rand({7}, line_of_ranks(), {Shard(0)}))};
  });
}

// Compares draws on 1 to 4 ranks, for rows and columns of a matrix.
void expect_same_everywhere(
    const std::function<at::Tensor(const Placement&)>& draw) {
  std::optional<at::Tensor> truth;
  for (int64_t ranks = 1; ranks <= 4; ++ranks) {
    for (const auto& layout : {Placement(Replicate()), Placement(Shard(0))}) {
      const auto mine = expect_alike(ranks, [&] {
        manual_seed(5);
        return Tensors{full_tensor(draw(layout))};
      });
      truth = truth.value_or(mine[0]);
      EXPECT_TRUE(at::equal(mine[0], *truth)) << ranks;
    }
  }
}

TEST(RandomNumbers, LayoutsAndNumbersOfRanksDoNotMatterToDTensors) {
  expect_same_everywhere([](const Placement& layout) {
    return randn({5, 3}, line_of_ranks(), {layout});
  });
}

TEST(RandomNumbers, PlainDrawsDoNotMatterToDTensors) {
  expect_same_everywhere([](const Placement& layout) {
    torch::rand({1 + 7 * get_rank()});
    torch::dropout(shard_of_rows(5), 0.5, true);
    const auto first = randn({5, 3}, line_of_ranks(), {layout});
    torch::randn({1 + 3 * get_rank()});
    return first + randn({5, 3}, line_of_ranks(), {layout});
  });
}

TEST(RandomNumbers, DropoutDropsTheSameElementsInEachLayout) {
  expect_same_everywhere([](const Placement& layout) {
    return torch::dropout(
        distribute_tensor(
            at::ones({5, 3}), line_of_ranks(), {layout}, std::nullopt),
        0.5,
        true);
  });
}

TEST(RandomNumbers, InitialisersDoNotDependOnTheLayout) {
  expect_same_everywhere([](const Placement& layout) {
    at::Tensor weight = zeros({5, 3}, line_of_ranks(), {layout});
    nn::init::kaiming_uniform_(weight);
    return weight;
  });
}

TEST(RandomNumbers, DeferredModelsAreTheSameOnAnyNumberOfRanks) {
  expect_same_everywhere([](const Placement& layout) {
    nn::Linear linear{nullptr};
    {
      const DeferredInit scope;
      linear = nn::Linear(4, 5);
    }
    parallelize_module(
        *linear, line_of_ranks(), ColwiseParallel({.output_layouts = layout}));
    materialize(*linear);
    return torch::cat(
        {full_tensor(linear->weight), full_tensor(linear->bias).view({5, 1})},
        1);
  });
}

TEST(RandomNumbers, RanksOutsideOfTheMeshTakePart) {
  manual_seed(6);
  expect_alike(3, [] {
    const auto inner = make_device_mesh(at::kCPU, {2}, {0, 1}, {"tp"});
    randn({4}, inner);
    return Tensors{DTensor(randn({4}, line_of_ranks())).to_local()};
  });
}

TEST(RandomNumbers, RanksOutsideOfTheMeshTakePartInDropout) {
  manual_seed(6);
  const auto draws = expect_alike(3, [] {
    const auto inner = make_device_mesh(at::kCPU, {2}, {0, 1}, {"tp"});
    const auto whole = line_of_ranks();
    const auto replicated = [&](at::IntArrayRef sizes) -> at::Tensor {
      return replicate_tensor(at::ones(sizes), inner);
    };
    Tensors drawn;
    const auto heads = replicated({1, 2, 3, 4});
    at::scaled_dot_product_attention(heads, heads, heads, {}, 0.5);
    drawn.push_back(DTensor(rand({4}, whole)).to_local());
    const Tensors weights(6, replicated({12, 3}));
    const auto state = replicated({3, 2, 3});
    const auto lstm = [&](double p, bool train) {
      at::lstm(
          replicated({5, 2, 3}),
          {state, state},
          weights,
          false,
          3,
          p,
          train,
          false,
          false);
      drawn.push_back(DTensor(rand({4}, whole)).to_local());
    };
    lstm(0.5, true); // drops after two of the three layers
    lstm(0.5, false);
    lstm(0, true);
    return drawn;
  });
  manual_seed(6);
  const auto skipped = expect_alike(3, [] {
    Tensors drawn;
    for (const int64_t skip : {1, 2, 0, 0}) {
      for (int64_t i = 0; i < skip; ++i) {
        rand({1}, line_of_ranks());
      }
      drawn.push_back(DTensor(rand({4}, line_of_ranks())).to_local());
    }
    return drawn;
  });
  expect_equal(draws, skipped);
}

TEST(RandomNumbers, PlainDrawsAreTheSameOnAllRanks) {
  expect_alike(4, replicated_draws);
}

TEST(RandomNumbers, PlainDrawsEqualAProgramWithoutRanks) {
  torch::manual_seed(7);
  const auto truth = replicated_draws();
  torch::manual_seed(7);
  expect_equal(expect_alike(3, replicated_draws), truth);
}

TEST(RandomNumbers, APassedGeneratorIsUsedAsItIs) {
  const auto draw = [] {
    auto generator = at::detail::createCPUGenerator(8);
    return torch::rand({9}, generator);
  };
  const auto truth = draw();
  EXPECT_TRUE(at::equal(
      expect_alike(
          3,
          [&] {
            shard_of_rows(5);
            return Tensors{draw()};
          })[0],
      truth));
}

TEST(RandomNumbers, ASeedInARankIsThatRanks) {
  torch::manual_seed(9);
  const auto draws = on_each_rank(3, [] {
    if (get_rank() == 1) {
      torch::manual_seed(10);
    }
    return Tensors{torch::rand({6})};
  });
  EXPECT_TRUE(at::equal(draws[0][0], draws[2][0]));
  EXPECT_FALSE(at::equal(draws[0][0], draws[1][0]));
}

TEST(RandomNumbers, ShardsOfOneSizeGetTheSameNumbers) {
  expect_alike(
      3, [] { return Tensors{torch::dropout(shard_of_rows(12), 0.5, true)}; });
}

TEST(RandomNumbers, UnevenShardsGiveOtherNumbersThanOneRank) {
  const auto draw = [] {
    shard_of_rows(5);
    return Tensors{torch::dropout(torch::ones({64}), 0.5, true)};
  };
  torch::manual_seed(11);
  const auto alone = expect_alike(1, draw);
  torch::manual_seed(11);
  EXPECT_FALSE(at::equal(expect_alike(3, draw)[0], alone[0]));
}

TEST(RandomNumbers, LocalMapEndsWithItsFunction) {
  const auto draw = [] {
    const auto same = local_map(
        [](const at::Tensor& t) { return t * 2; }, {Shard(0)}, {{Shard(0)}});
    same(ones({5, 4}, line_of_ranks(), {Shard(0)}));
    return replicated_draws();
  };
  torch::manual_seed(12);
  const auto alone = expect_alike(1, draw);
  torch::manual_seed(12);
  expect_equal(expect_alike(3, draw), alone);
}

TEST(RandomNumbers, ToLocalOfUnevenShardsIsForAllRanks) {
  torch::manual_seed(13);
  const auto draws = on_each_rank(3, [] {
    const DTensor x(ones({5}, line_of_ranks(), {Shard(0)}));
    if (get_rank() == 0) {
      x.to_local();
    }
    return replicated_draws();
  });
  EXPECT_FALSE(at::equal(draws[0][0], draws[1][0]));
  expect_equal(draws[1], draws[2]);
}

TEST(RandomNumbers, PrintingHandsOutNothing) {
  torch::manual_seed(14);
  expect_alike(3, [] {
    const DTensor x(ones({5}, line_of_ranks(), {Shard(0)}));
    if (get_rank() == 0) {
      std::ostringstream text;
      text << x;
    }
    return replicated_draws();
  });
}

TEST(RandomNumbers, AGeneratorForDataLeavesTheModelAlike) {
  std::vector<at::Tensor> data(3);
  expect_alike(3, [&] {
    const auto rank = get_rank();
    auto generator =
        at::detail::createCPUGenerator(15 + static_cast<uint64_t>(rank));
    data[static_cast<size_t>(rank)] =
        torch::randint(1000, {8 + rank}, generator, torch::kLong);
    return replicated_draws();
  });
  EXPECT_FALSE(at::equal(data[0], data[1].slice(0, 0, 8)));
}

TEST(RandomNumbers, ASeedForEachRankSeparatesAllDraws) {
  const auto draws = on_each_rank(2, [] {
    torch::manual_seed(16 + static_cast<uint64_t>(get_rank()));
    auto all = replicated_draws();
    all.push_back(DTensor(randn({4}, line_of_ranks())).to_local());
    return all;
  });
  for (size_t i = 0; i < draws[0].size(); ++i) {
    EXPECT_FALSE(at::equal(draws[0][i], draws[1][i])) << i;
  }
}

TEST(RandomNumbers, StatesHoldBothSources) {
  expect_alike(2, [] {
    torch::rand({3});
    randn({3}, line_of_ranks());
    const auto state = get_random_state();
    const auto draw = [] {
      auto all = replicated_draws();
      all.push_back(DTensor(randn({4}, line_of_ranks())).to_local());
      return all;
    };
    const auto first = draw();
    set_random_state(state);
    expect_equal(draw(), first);
    return first;
  });
}

// Activation checkpointing in Python saves and restores states of LibTorch.
TEST(RandomNumbers, StatesOfLibTorchHoldBothSources) {
  run_ranks(2, [](int64_t rank) {
    const auto mesh = line_of_ranks();
    const auto draw = [&] {
      auto all = replicated_draws();
      all.push_back(DTensor(randn({4}, mesh)).to_local());
      const auto ones = zeros({4, 3}, mesh, {Shard(0)}) + 1;
      all.push_back(DTensor(torch::dropout(ones, 0.5, true)).full_tensor());
      return all;
    };
    randn({3}, mesh);
    auto generator = at::detail::getDefaultCPUGenerator();
    const auto state = generator.get_state();
    const auto first = draw();
    torch::manual_seed(static_cast<uint64_t>(rank)); // as in fork_rng()
    generator.set_state(state);
    expect_equal(draw(), first);
    generator.set_state(state);
    const auto position = get_random_state();
    // A state of another generator restores the draws of plain tensors alone.
    generator.set_state(at::detail::createCPUGenerator(7).get_state());
    EXPECT_TRUE(at::equal(
        get_random_state().narrow(0, 0, 16), position.narrow(0, 0, 16)));
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor

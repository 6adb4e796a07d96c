// SPDX-License-Identifier: BSD-3-Clause
// Seeds and generator states on ranks with uneven local shards.
#include "on_each_rank.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace test_random;

TEST(UnevenShards, SeedingEndsIt) {
  torch::manual_seed(11);
  const auto truth = replicated_draws();
  run_ranks(3, [&] {
    for (const bool ours : {false, true}) {
      torch::dropout(shard_of_rows(5), 0.5, true);
      ours ? dtensor::manual_seed(11) : (void)torch::manual_seed(11);
      const auto mine = replicated_draws();
      for (size_t i = 0; i < truth.size(); ++i) {
        EXPECT_TRUE(at::equal(mine[i], truth[i])) << i;
      }
    }
  });
}

// Generator states of LibTorch, as activation checkpointing saves them, and of
// dtensor restore draws.
TEST(UnevenShards, StatesBringDrawsBack) {
  run_ranks(3, [] {
    auto generator = at::detail::getDefaultCPUGenerator();
    const auto before = generator.get_state();
    const auto draw = [] {
      const auto shard = shard_of_rows(5);
      Tensors all = {torch::dropout(shard, 0.5, true)};
      const auto draws = replicated_draws();
      all.insert(all.end(), draws.begin(), draws.end());
      return all;
    };
    const auto expect_same = [](const Tensors& a, const Tensors& b) {
      for (size_t i = 0; i < a.size(); ++i) {
        EXPECT_TRUE(at::equal(a[i], b[i])) << i;
      }
    };
    const auto first = draw();
    const auto state = get_random_state();
    const auto theirs = generator.get_state();
    const auto later = draw();
    set_random_state(state);
    expect_same(draw(), later);
    generator.set_state(theirs);
    expect_same(draw(), later);
    generator.set_state(before);
    expect_same(draw(), first);
  });
}

TEST(UnevenShards, AStateGoesOnOnAnotherNumberOfRanks) {
  at::Tensor state;
  Tensors truth;
  torch::manual_seed(12);
  run_ranks(3, [&](int64_t rank) {
    torch::dropout(shard_of_rows(5), 0.5, true);
    const auto mine = get_random_state();
    const auto draws = replicated_draws();
    if (rank == 0) {
      state = mine.clone();
      truth = draws;
    }
  });
  for (const int64_t ranks : {1, 2, 4}) {
    run_ranks(ranks, [&] {
      set_random_state(state);
      const auto draws = replicated_draws();
      for (size_t i = 0; i < truth.size(); ++i) {
        EXPECT_TRUE(at::equal(draws[i], truth[i])) << i << " on " << ranks;
      }
    });
  }
}

TEST(UnevenShards, RanksThatLiveOnStayAlike) {
  torch::manual_seed(14);
  Ranks ranks(3);
  for (int run = 0; run < 3; ++run) {
    std::vector<Tensors> all(3);
    ranks.run([&](int64_t rank) {
      torch::dropout(shard_of_rows(5), 0.5, true);
      all[static_cast<size_t>(rank)] = replicated_draws();
    });
    for (size_t i = 0; i < all[0].size(); ++i) {
      EXPECT_TRUE(at::equal(all[1][i], all[0][i]));
      EXPECT_TRUE(at::equal(all[2][i], all[0][i]));
    }
  }
}

// Ranks that share the generator of the process never draw equal numbers, so
// nothing has to be drawn again.
TEST(UnevenShards, LeaveASharedGeneratorAlone) {
  torch::manual_seed(3);
  const auto expected = torch::rand({4});
  torch::manual_seed(3);
  run_ranks(
      2,
      [&](int64_t rank) {
        const auto rows = shard_of_rows(3);
        new_group({0, 1}, "tp")->barrier();
        if (rank == 0) {
          EXPECT_EQ(rows.size(0), 2);
          EXPECT_TRUE(at::equal(torch::rand({4}), expected));
        }
      },
      {.own_generators = false});
}

} // namespace TEST_SOURCE
} // namespace dtensor

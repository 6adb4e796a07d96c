// SPDX-License-Identifier: BSD-3-Clause
// Models sharded by fully_shard, compared with the plain model.
#include <tests/data_parallel/training.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_training;

void expect_trains_alike(
    const Layout& layout,
    const Options& options,
    const FullyShardOptions& sharding = {}) {
  auto plain = make_gpt();
  const auto expected = train_plain(plain, options);
  run_ranks(layout.ranks(), [&] {
    ShardedRun run(make_gpt(), layout, sharding);
    for (size_t i = 0; i < expected.size(); ++i) {
      const auto loss = run.step(static_cast<int64_t>(i), options);
      EXPECT_NEAR(loss, expected[i], 1e-9) << run.mesh() << ", step " << i;
    }
    expect_same_parameters(*run.model(), *plain);
  });
}

TEST(FullyShard, TrainsAsOneProcess) {
  for (const int64_t ranks : {1, 2, 3, 4}) {
    expect_trains_alike({{ranks}, {"shard"}}, {});
  }
}

TEST(FullyShard, TrainsWithTensorParallelism) {
  expect_trains_alike({{2, 2}, {"shard", "tp"}}, {});
}

TEST(FullyShard, TrainsRepeated) {
  expect_trains_alike({{2, 2}, {"repeat", "shard"}}, {});
}

TEST(FullyShard, TrainsOnThreeDimensions) {
  expect_trains_alike({{2, 2, 2}, {"repeat", "shard", "tp"}}, {});
}

TEST(FullyShard, AccumulatesAndClips) {
  for (const bool sync_each : {true, false}) {
    const Options options{
        .accumulate = 2, .sync_each = sync_each, .max_norm = 0.5};
    expect_trains_alike({{3}, {"shard"}}, options);
    expect_trains_alike({{2, 2}, {"shard", "tp"}}, options);
    expect_trains_alike({{2, 2}, {"repeat", "shard"}}, options);
  }
}

TEST(SlowFullyShard, TrainsThirtySteps) {
  const Options options{.steps = 30, .accumulate = 2, .max_norm = 0.5};
  expect_trains_alike({{1}, {"shard"}}, options);
  expect_trains_alike({{4}, {"shard"}}, options);
  expect_trains_alike({{2, 2}, {"shard", "tp"}}, options);
  expect_trains_alike({{2, 2}, {"repeat", "shard"}}, options);
  expect_trains_alike({{2, 2, 2}, {"repeat", "shard", "tp"}}, options);
}

TEST(FullyShard, ReshardsAfterForwardAsGiven) {
  expect_trains_alike({{2}, {"shard"}}, {}, {.reshard_after_forward = false});
  expect_trains_alike({{2}, {"shard"}}, {}, {.reshard_after_forward = true});
  expect_trains_alike({{4}, {"shard"}}, {}, {.reshard_after_forward = 2});
}

// Each unit takes two all-gathers and one reduce-scatter. The outermost unit
// takes one all-gather, since it keeps its parameters.
TEST(FullyShard, CommunicatesOnceForAUnit) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"shard"});
    auto model = make_gpt();
    shard_gpt(model, mesh);
    const auto [ids, targets] = batch_of(0);
    for (int step = 0; step < 3; ++step) {
      const CommDebugMode comm;
      gpt::loss_of(model->forward(ids), targets).backward();
      const auto layers = config().layers;
      EXPECT_EQ(
          comm.get_comm_counts().at(CollectiveKind::kAllGather),
          2 * layers + 1);
      EXPECT_EQ(
          comm.get_comm_counts().at(CollectiveKind::kReduceScatter),
          layers + 1);
      EXPECT_EQ(comm.get_total_counts(), 3 * layers + 2);
    }
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor

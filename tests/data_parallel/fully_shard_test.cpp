// SPDX-License-Identifier: BSD-3-Clause
// Models whose parameters are kept in parts against the plain model.
#include <tests/data_parallel/training.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_training;

// Blocks are units, and the rest is one.
void shard_gpt(
    gpt::GPT& model,
    const DeviceMesh& mesh,
    const FullyShardOptions& given = {}) {
  auto options = given;
  options.mesh = mesh;
  for (const auto& block : *model->blocks) {
    fully_shard(*block, options);
  }
  fully_shard(*model, options);
}

struct Layout {
  std::vector<int64_t> shape;
  std::vector<std::string> names; // of repeat, shard and tp
  bool has(const std::string& name) const {
    return std::find(names.begin(), names.end(), name) != names.end();
  }
  int64_t ranks() const {
    int64_t all = 1;
    for (const auto size : shape) {
      all *= size;
    }
    return all;
  }
};

DeviceMesh data_mesh(const DeviceMesh& mesh, const Layout& layout) {
  return layout.has("repeat") ? mesh[{"repeat", "shard"}] : mesh["shard"];
}

// This rank's place among those that see other data.
int64_t data_index(const DeviceMesh& data) {
  int64_t index = 0;
  for (int64_t m = 0; m < data.ndim(); ++m) {
    index = index * data.size(m) + data.get_local_rank(m);
  }
  return index;
}

double mean_over(double value, const DeviceMesh& mesh) {
  auto mean = at::scalar_tensor(value, at::kDouble);
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    mean = get_group(mesh, m).all_reduce(mean, ReduceOp::kAvg);
  }
  return mean.item<double>();
}

std::vector<double>
train_sharded(gpt::GPT& model, const DeviceMesh& data, const Options& options) {
  torch::optim::AdamW optimizer(
      model->parameters(), torch::optim::AdamWOptions(1e-2));
  FSDPModule root(*model);
  std::vector<double> losses;
  for (int64_t step = 0; step < options.steps; ++step) {
    optimizer.zero_grad();
    const auto mine = accumulate_gradients(
        options,
        step,
        data_index(data),
        data.size(),
        [&](bool last) {
          root.set_requires_gradient_sync(options.sync_each || last);
        },
        [&](const at::Tensor& ids, const at::Tensor& targets) {
          const auto guard = loss_parallel();
          const auto loss = gpt::loss_of(model->forward(ids), targets);
          (loss / options.accumulate).backward();
          return full(loss).item<double>();
        });
    losses.push_back(mean_over(mine, data));
    if (options.max_norm) {
      clip_grad_norm_(model->parameters(), *options.max_norm);
    }
    optimizer.step();
  }
  return losses;
}

void expect_trains_alike(
    const Layout& layout,
    const Options& options,
    const FullyShardOptions& sharding = {}) {
  auto plain = make_gpt();
  const auto expected = train_plain(plain, options);
  run_ranks(layout.ranks(), [&] {
    const auto mesh = init_device_mesh(at::kCPU, layout.shape, layout.names);
    const auto data = data_mesh(mesh, layout);
    auto model = make_gpt();
    if (layout.has("tp")) {
      gpt::parallelize(model, mesh["tp"], {.sequence = true, .loss = true});
    }
    shard_gpt(model, data, sharding);
    const auto losses = train_sharded(model, data, options);
    for (size_t i = 0; i < losses.size(); ++i) {
      EXPECT_NEAR(losses[i], expected[i], 1e-9) << mesh << ", step " << i;
    }
    expect_same_parameters(*model, *plain);
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
  expect_trains_alike({{4}, {"shard"}}, options);
  expect_trains_alike({{2, 2}, {"shard", "tp"}}, options);
  expect_trains_alike({{2, 2}, {"repeat", "shard"}}, options);
  expect_trains_alike({{2, 2, 2}, {"repeat", "shard", "tp"}}, options);
}

TEST(FullyShard, KeepsWhatItIsToldTo) {
  expect_trains_alike({{2}, {"shard"}}, {}, {.reshard_after_forward = false});
  expect_trains_alike({{2}, {"shard"}}, {}, {.reshard_after_forward = true});
  expect_trains_alike({{4}, {"shard"}}, {}, {.reshard_after_forward = 2});
}

// Two gathers and one reduce_scatter a unit; one gather of the outermost, which
// keeps its parameters.
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

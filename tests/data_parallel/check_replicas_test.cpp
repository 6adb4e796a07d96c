// SPDX-License-Identifier: BSD-3-Clause
// CheckReplicas with data parallelism: different data on ranks is not an error,
// and replicas of shards are compared.
#include <dtensor/data_parallel/replicate.h>
#include <dtensor/debug/check_replicas.h>
#include <dtensor/parallel/context_parallel.h>
#include <tests/data_parallel/training.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_training;

int64_t compared_in_training(const Layout& layout, const Options& options) {
  int64_t compared = 0;
  run_ranks(layout.ranks(), [&](int64_t rank) {
    ShardedRun run(make_gpt(), layout);
    CheckReplicas check(*run.model(), run.mesh());
    for (int64_t step = 0; step < 3; ++step) {
      run.step(step, options);
      check.finish();
    }
    if (rank == 0) {
      compared = check.compared();
    }
  });
  return compared;
}

TEST(CheckReplicas, IsSilentInFullyShard) {
  for (const bool sync_each : {true, false}) {
    const Options options{
        .accumulate = 2, .sync_each = sync_each, .max_norm = 0.5};
    compared_in_training({{3}, {"shard"}}, options);
    EXPECT_GT(
        compared_in_training({{2, 2}, {"repeat", "shard"}}, options), 100);
    EXPECT_GT(compared_in_training({{2, 2}, {"shard", "tp"}}, options), 100);
    EXPECT_GT(
        compared_in_training({{2, 2, 2}, {"repeat", "shard", "tp"}}, options),
        100);
  }
}

TEST(CheckReplicas, FindsAReplicaOfAShardThatDiffers) {
  run_ranks(4, [](int64_t rank) {
    const Layout layout{{2, 2}, {"repeat", "shard"}};
    ShardedRun run(make_gpt(), layout);
    const auto& mesh = run.mesh();
    if (rank == 3) {
      const auto parameters = run.model()->named_parameters();
      DTensor(parameters["lnf.weight"].detach()).to_local().add_(0.5);
    }
    const auto error =
        error_of([&] { CheckReplicas check(*run.model(), mesh); });
    EXPECT_EQ(
        error,
        mesh.get_local_rank("shard") == 0
            ? ""
            : "[CheckReplicas] the parameter \"lnf.weight\" differs between "
              "the ranks of mesh dimension \"repeat\": the f64[10] of rank 3 "
              "differs by up to 0.5 from that of rank 1. Seed all ranks alike "
              "before the model is made, load the same weights on all of them, "
              "and write to the parameter on all or on none.");
  });
}

// Returns rows that differ between ranks.
at::Tensor rows_of(int64_t rank, int64_t step) {
  return uniform({3, 4}, static_cast<uint64_t>(10 * rank + step));
}

TEST(CheckReplicas, IsSilentInReplicate) {
  run_ranks(4, [](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
    auto model = filled(Mlp(4, 8));
    parallelize_module(*model, mesh["tp"], mlp_plan());
    replicate(*model, mesh["dp"]);
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    CheckReplicas check(*model, mesh);
    for (int64_t step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      model(rows_of(rank / 2, step)).square().sum().backward();
      clip_grad_norm_(model->parameters(), 0.5);
      optimizer.step();
      check.finish();
    }
    EXPECT_GT(check.compared(), 20);
  });
}

// Without replicate(), plain parameters diverge along "dp".
TEST(CheckReplicas, FindsPlainParametersThatDriftApart) {
  run_ranks(2, [](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"dp"});
    auto model = filled(Mlp(4, 8));
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    CheckReplicas check(*model, mesh);
    model(rows_of(rank, 0)).square().sum().backward();
    optimizer.step();
    EXPECT_THAT(
        error_of([&] { check.finish(); }),
        testing::StartsWith(
            "[CheckReplicas] the parameter \"w1.weight\" "
            "differs between the ranks of mesh dimension "
            "\"dp\": the f64[8, 4] of rank 1 differs by up to "));
  });
}

struct AttentionImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { // (B, T, C)
    const auto heads = [](const at::Tensor& t) {
      return t.unflatten(-1, {-1, 4}).transpose(1, 2);
    };
    const auto out = at::scaled_dot_product_attention(
        heads(q(x)), heads(k(x)), heads(v(x)), {}, 0, true);
    return o(out.transpose(1, 2).flatten(-2));
  }
  torch::nn::Linear q = register_module("q", torch::nn::Linear(8, 16));
  torch::nn::Linear k = register_module("k", torch::nn::Linear(8, 16));
  torch::nn::Linear v = register_module("v", torch::nn::Linear(8, 16));
  torch::nn::Linear o = register_module("o", torch::nn::Linear(16, 8));
};
TORCH_MODULE(Attention);

// Ranks of "cp" have different tokens and losses.
TEST(CheckReplicas, IsSilentInContextParallel) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"cp", "tp"});
    auto model = filled(Attention());
    parallelize_module(
        *model,
        mesh["tp"],
        {{"[qkv]", ColwiseParallel()}, {"o", RowwiseParallel()}});
    replicate(*model, mesh["cp"]);
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    CheckReplicas check(*model, mesh);
    for (uint64_t step = 0; step < 3; ++step) {
      auto x = uniform({2, 8, 8}, step);
      const auto scope = context_parallel(
          mesh["cp"], {.buffers = {x}, .buffer_seq_dims = {1}});
      optimizer.zero_grad();
      model(x).square().sum().backward();
      optimizer.step();
    }
    check.finish();
    EXPECT_GT(check.compared(), 20);
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor

// SPDX-License-Identifier: BSD-3-Clause
// Buffers of a module with different data on each rank, such as statistics of
// batch norms. They are broadcast from rank 0.
#include <dtensor/data_parallel/fully_shard.h>
#include <dtensor/data_parallel/replicate.h>
#include <dtensor/debug/comm_debug_mode.h>
#include <dtensor/parallel/module_hooks.h>
#include <tests/parallel/modules.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_modules;

struct NetImpl : torch::nn::Module {
  NetImpl()
      : norm(register_module("norm", torch::nn::BatchNorm1d(6))),
        out(register_module("out", torch::nn::Linear(6, 3))) {}
  at::Tensor forward(const at::Tensor& x) {
    return out(norm(x));
  }
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear out;
};
TORCH_MODULE(Net);

struct HookedNetImpl : NetImpl {};
DTENSOR_MODULE(HookedNet);

const auto x = uniform({12, 6}, 3);

at::Tensor rows_of_rank(int64_t rank, int64_t ranks) {
  return x.narrow(0, 12 / ranks * rank, 12 / ranks);
}

// Returns a plain module with the statistics of rank 0's data.
template <class Holder>
Holder seen_by_first(int64_t ranks, int64_t passes) {
  auto plain = filled(Holder());
  for (int64_t pass = 0; pass < passes; ++pass) {
    plain(rows_of_rank(0, ranks));
  }
  return plain;
}

template <class Holder>
void expect_same_buffers(const Holder& mine, const Holder& truth) {
  for (const auto& item : truth->named_buffers()) {
    const auto buffer = mine->named_buffers()[item.key()];
    EXPECT_TRUE(at::equal(buffer, item.value())) << item.key();
  }
}

template <class Holder>
void train_and_compare(int64_t ranks) {
  run_ranks(ranks, [&](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"dp"});
    auto mine = filled(Holder());
    replicate(*mine, mesh);
    for (int64_t pass = 1; pass < 4; ++pass) {
      mine(rows_of_rank(rank, ranks)).square().mean().backward();
      expect_same_buffers(mine, seen_by_first<Holder>(ranks, pass));
    }
  });
}

TEST(ReplicatedBuffers, MatchTheFirstRankAfterEachStep) {
  for (const int64_t ranks : {1, 2, 3}) {
    train_and_compare<Net>(ranks);
    train_and_compare<HookedNet>(ranks);
  }
}

TEST(ReplicatedBuffers, MatchTheFirstRankFromTheBeginning) {
  run_ranks(2, [](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"dp"});
    auto mine = filled(Net());
    mine->norm->running_mean.fill_(static_cast<double>(rank + 5));
    replicate(*mine, mesh);
    EXPECT_TRUE(
        at::equal(mine->norm->running_mean, at::full({6}, 5., at::kDouble)));
  });
}

TEST(ReplicatedBuffers, StayLocalOnRequest) {
  run_ranks(2, [](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"dp"});
    auto mine = filled(Net());
    auto alone = filled(Net());
    replicate(*mine, mesh, {.broadcast_buffers = false});
    for (auto* each : {&mine, &alone}) {
      (*each)(rows_of_rank(rank, 2)).square().mean().backward();
    }
    expect_same_buffers(mine, alone);
  });
}

// There is one broadcast per dtype, and none without buffers.
TEST(ReplicatedBuffers, GoTogether) {
  run_ranks(2, [](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"dp"});
    Net mine; // the batch counter is an integer
    auto bare = filled(Mlp(6, 10));
    replicate(*mine, mesh);
    replicate(*bare, mesh);
    const CommDebugMode comm;
    mine(rows_of_rank(rank, 2).to(at::kFloat)).square().mean().backward();
    EXPECT_EQ(comm.get_comm_counts().at(CollectiveKind::kBroadcast), 2);
    const CommDebugMode other;
    bare(rows_of_rank(rank, 2)).square().mean().backward();
    EXPECT_EQ(other.get_total_counts(), 1);
  });
}

TEST(ReplicatedBuffers, WaitWithGradients) {
  run_ranks(2, [](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"dp"});
    auto mine = filled(Net());
    auto replicas = replicate(*mine, mesh);
    replicas.set_requires_gradient_sync(false);
    const CommDebugMode comm;
    mine(rows_of_rank(rank, 2)).square().mean().backward();
    mine(rows_of_rank(rank, 2)).square().mean().backward();
    EXPECT_EQ(comm.get_total_counts(), 0);
  });
}

// A hooked module also broadcasts between two forward passes without backward.
TEST(ReplicatedBuffers, AreSharedBeforeAForwardOfAHookedModule) {
  run_ranks(2, [](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"dp"});
    auto mine = filled(HookedNet());
    replicate(*mine, mesh);
    mine(rows_of_rank(rank, 2));
    mine(rows_of_rank(0, 2));
    expect_same_buffers(mine, seen_by_first<HookedNet>(2, 2));
    if (rank == 0) { // evaluation on one rank only
      const torch::NoGradGuard no_grad;
      mine->eval();
      mine(rows_of_rank(0, 2));
    }
  });
}

TEST(BroadcastBuffers, SendsTheFirstRanksBuffersToAMesh) {
  run_ranks(4, [](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dr", "dp"});
    auto mine = filled(Net());
    fully_shard(*mine, {.mesh = mesh});
    mine(rows_of_rank(rank, 4)).square().mean().backward();
    broadcast_buffers(*mine, mesh);
    expect_same_buffers(mine, seen_by_first<Net>(4, 1));
  });
}

// Returns a module whose only buffer is distributed.
torch::nn::Module with_table(const at::Tensor& table) {
  torch::nn::Module module("Table");
  module.register_buffer("table", table);
  return module;
}

TEST(BroadcastBuffers, KeepsShardsOfDTensors) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
    const auto whole = uniform({4}, 5);
    const auto mine = whole + mesh.get_local_rank("dp");
    const auto one = DTensor::from_local(
        part(mine, mesh["tp"], Shard(0)), mesh["tp"], {Shard(0)});
    const auto both = DTensor::from_local(
        part(mine, mesh["tp"], Shard(0)), mesh, {Replicate(), Shard(0)});
    for (const auto& table : {one, both}) {
      const auto module = with_table(table);
      broadcast_buffers(module, mesh["dp"]);
      expect_close(module.buffers()[0], whole, "broadcast over dp", 0);
    }
    auto module = with_table(one);
    EXPECT_EQ(
        error_of([&] { broadcast_buffers(module, mesh); }),
        "[broadcast_buffers] buffer \"table\" is f64[4] on (tp=2): S(0), "
        "distributed over ranks of (dp=2, tp=2). Pass the mesh dimension along "
        "which buffers are replicated.");
    EXPECT_EQ(
        error_of([&] { replicate(module, mesh["tp"]); }),
        "[replicate] buffer \"table\" is f64[4] on (tp=2): S(0), distributed "
        "over ranks of (tp=2). Pass the mesh dimension along which buffers are "
        "replicated.");
    expect_close(module.buffers()[0], whole, "unchanged", 0);
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor

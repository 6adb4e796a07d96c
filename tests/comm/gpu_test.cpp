// SPDX-License-Identifier: BSD-3-Clause
// Ranks that are threads and share one GPU.
#include <dtensor/comm/ranks.h>
#include <gtest/gtest.h>
#include <tests/gpu.h>
#include <torch/torch.h>

#include "collective_inputs.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace test;

constexpr int64_t kRanks = 4;
constexpr int64_t kNumel = 1 << 20;
const at::Device kGpu(at::kCUDA, 0);

at::Tensor on_gpu(int64_t rank, at::IntArrayRef sizes) {
  return input_of(rank, sizes).to(kGpu);
}

TEST(GpuRanks, EveryCollective) {
  DTENSOR_NEEDS_GPU();
  run_ranks(kRanks, [](int64_t rank) {
    const GroupPtr group = world();
    const auto me = static_cast<size_t>(rank);
    const auto all = inputs({4, 8});
    const auto sum = reduced(all, ReduceOp::kSum);
    const auto mine = on_gpu(rank, {4, 8});
    const auto on_device = [&](const at::Tensor& got) {
      EXPECT_EQ(got.device(), kGpu);
      return got.cpu();
    };
    expect_equal(on_device(group->all_reduce(mine, ReduceOp::kSum)), sum);
    expect_equal(on_device(group->all_gather(mine, 1)), torch::cat(all, 1));
    expect_equal(
        on_device(group->reduce_scatter(mine, 0, ReduceOp::kSum)),
        sum.chunk(kRanks, 0)[me].contiguous());
    const auto whole = torch::cat(all, 0);
    expect_equal(
        on_device(group->shard_dim_alltoall(mine, 0, 1)),
        whole.chunk(kRanks, 1)[me].contiguous());
    expect_equal(on_device(group->broadcast(mine, 2)), all[2]);
    const auto swapped = group->all_to_all({mine, mine, mine, mine});
    expect_equal(on_device(swapped[3]), all[3]);
    const auto gathered = group->gather(mine, 1);
    EXPECT_EQ(gathered.size(), rank == 1 ? kRanks : 0);
    expect_equal(on_device(group->scatter(gathered, mine, 1)), all[me]);
    const auto later = group->all_reduce_async(mine.clone(), ReduceOp::kMax);
    expect_equal(on_device(later->wait()), reduced(all, ReduceOp::kMax));
    group->barrier();
  });
}

// Returns a tensor full of `value` that the GPU computes for some milliseconds.
at::Tensor late(double value) {
  const auto factor = torch::ones({2048, 2048}, kGpu);
  auto product = factor;
  for (int i = 0; i < 8; ++i) {
    product = product.matmul(factor) / 2048;
  }
  return product.flatten().slice(0, 0, kNumel) * value;
}

// Collectives are ordered with all streams: an input is complete before others
// read it, and is read before its memory is reused.
TEST(GpuRanks, OnStreamsOfTheirOwn) {
  DTENSOR_NEEDS_GPU();
  run_ranks(kRanks, [](int64_t rank) {
    const GroupPtr group = world();
    const OwnStream stream(kGpu);
    const int64_t next = (rank + 1) % kRanks;
    const int64_t before = (rank + kRanks - 1) % kRanks;
    for (int64_t round = 1; round < 6; ++round) {
      const auto value = static_cast<double>(round * 8 + rank);
      const auto sum = group->all_reduce(late(value), ReduceOp::kSum);
      auto again = torch::full({kNumel}, -1.0, kGpu);
      const double expected = static_cast<double>(round * 8 * kRanks + 6);
      EXPECT_EQ(sum.min().item<double>(), expected);
      EXPECT_EQ(sum.max().item<double>(), expected);
      const auto pending = group->all_gather_async(late(value), 0, kNumel * 4);
      again.fill_(-2);
      const auto all = pending->wait();
      EXPECT_EQ(all[0].item<double>(), static_cast<double>(round * 8));
      EXPECT_EQ(all[-1].item<double>(), static_cast<double>(round * 8 + 3));
      group->send(late(value), next);
      const auto message = group->recv(again, before);
      const auto doubled = message * 2; // still running when `message` is freed
      EXPECT_EQ(
          doubled.max().item<double>(),
          2 * static_cast<double>(round * 8 + before));
    }
  });
}

TEST(GpuRanks, BesideRanksOfTheCpu) {
  DTENSOR_NEEDS_GPU();
  run_ranks(2, [](int64_t rank) {
    const GroupPtr group = world();
    const auto mine =
        rank == 0 ? input_of(0, {3, 70'000}) : on_gpu(1, {3, 70'000});
    const auto sum = group->all_reduce(mine, ReduceOp::kSum);
    EXPECT_EQ(sum.device(), mine.device());
    expect_equal(sum.cpu(), reduced(inputs({3, 70'000}), ReduceOp::kSum));
    expect_equal(
        group->all_gather(mine, 0).cpu(), torch::cat(inputs({3, 70'000})));
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor

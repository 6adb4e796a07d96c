// SPDX-License-Identifier: BSD-3-Clause
// Properties specific to GPU tensors: readiness on streams, and CPU tensors in
// the same group. Skipped unless --device is cuda.
#include <dtensor/comm/group.h>
#include <dtensor/comm/world.h>
#include <gtest/gtest.h>
#include <tests/comm/collective_inputs.h>
#include <tests/gpu.h>
#include <torch/torch.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace test;

class Gpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!test_device.is_cuda()) {
      GTEST_SKIP() << "skipped: "
                   << (gpus() == 0 ? "no GPU" : "tensors are to be of the CPU");
    }
  }
};

// Returns a tensor full of `value` that the GPU computes for some milliseconds.
at::Tensor late(double value, int64_t numel) {
  const auto factor = torch::ones({2048, 2048}, test_device);
  auto product = factor;
  for (int i = 0; i < 8; ++i) {
    product = product.matmul(factor) / 2048;
  }
  return product.flatten().slice(0, 0, numel) * value;
}

// Results are ready on the current stream, which is not the default stream
// here. The collective reads an input that is still being computed, and the
// input's memory is reused at once.
TEST_F(Gpu, ResultsAreReadyOnTheCurrentStream) {
  const GroupPtr group = world();
  const OwnStream stream(test_device);
  const auto n = static_cast<double>(group->size());
  constexpr int64_t kNumel = 1 << 20;
  for (int round = 0; round < 5; ++round) {
    const auto sum = group->all_reduce(late(1 + round, kNumel), ReduceOp::kSum);
    auto again = torch::full({kNumel}, -1.0, test_device);
    EXPECT_EQ(sum.min().item<double>(), n * (1 + round));
    EXPECT_EQ(sum.max().item<double>(), n * (1 + round));
    const auto all = group->all_gather(late(2, kNumel), 0);
    again.fill_(-2);
    EXPECT_EQ(all.min().item<double>(), 2);
    const auto part = group->reduce_scatter(
        late(3, kNumel / group->size() * group->size()), 0, ReduceOp::kSum);
    again.fill_(-3);
    EXPECT_EQ(part.max().item<double>(), 3 * n);
  }
}

TEST_F(Gpu, WhatIsWaitedForLaterIsReadyThen) {
  const GroupPtr group = world();
  constexpr int64_t kNumel = 1 << 20;
  std::vector<PendingPtr> pending;
  for (int i = 0; i < 8; ++i) {
    pending.push_back(group->all_reduce_async(late(i, kNumel), ReduceOp::kMax));
    const int64_t total = kNumel * group->size();
    group->all_gather_async(late(i, kNumel), 0, total); // not waited for
  }
  const OwnStream stream(test_device);
  for (size_t i = 0; i < pending.size(); ++i) {
    EXPECT_EQ(pending[i]->wait().min().item<double>(), static_cast<double>(i));
  }
}

// CPU and GPU tensors use the backends of their devices in one group.
TEST_F(Gpu, TensorsOfTheCpuGoBesideThem) {
  const GroupPtr group = world();
  const auto mine = input_of(get_rank(), {4, 5});
  const auto sum = reduced(inputs({4, 5}), ReduceOp::kSum);
  expect_equal(group->all_reduce(mine.cpu(), ReduceOp::kSum), sum.cpu());
  expect_equal(group->all_reduce(mine, ReduceOp::kSum), sum);
}

} // namespace TEST_SOURCE
} // namespace dtensor

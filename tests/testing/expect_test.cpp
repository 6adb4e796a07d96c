// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/comm/ranks.h>
#include <dtensor/tensor/dtensor.h>
#include <dtensor/testing/expect.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/error_of.h>
#include <torch/torch.h>

namespace dtensor::testing {
namespace TEST_SOURCE {

using test_text::error_of;

TEST(Expect, SeededNumbersAreTheSameOnEveryRank) {
  const auto here = seeded_randn({3, 4}, at::kDouble, 7);
  EXPECT_FALSE(torch::equal(here, seeded_randn({3, 4}, at::kDouble, 8)));
  run_ranks(2, [&] {
    torch::randn({get_rank() + 1}); // ranks draw different numbers
    TORCH_CHECK(torch::equal(here, seeded_randn({3, 4}, at::kDouble, 7)));
  });
}

TEST(Expect, CloseComparesTheFullTensor) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(torch::kCPU, {2}, {"tp"});
    const auto full = seeded_randn({5, 2}, at::kDouble, 1);
    const auto d = distribute_tensor(full, mesh, {Shard(0)});
    expect_close(d, full);
    expect_layout(d, "S(0)");
    EXPECT_EQ(
        error_of([&] { expect_close(d, full + 1); }),
        "[expect_close] f64[5, 2] on (tp=2): S(0) differs by up to 1.");
    EXPECT_EQ(
        error_of([&] { expect_close(d, full.to(at::kFloat)); }),
        "[expect_close] f64[5, 2] on (tp=2): S(0) is f64[5, 2], expected "
        "f32[5, 2].");
    EXPECT_EQ(
        error_of([&] { expect_layout(d, "R"); }),
        "[expect_layout] f64[5, 2] on (tp=2): S(0), expected R.");
    EXPECT_EQ(
        error_of([&] { expect_layout(full, "R"); }),
        "[expect_layout] the tensor is plain, expected R.");
  });
}

TEST(Expect, LogHearsOnlyWhileItLives) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(torch::kCPU, {2}, {"tp"});
    const auto d = distribute_tensor(
        seeded_randn({4, 2}, at::kDouble, 1), mesh, {Shard(0)});
    CollectiveLog log;
    redistribute(d, {Shard(1)});
    full_tensor(d);
    EXPECT_EQ(log.text(), "all_to_all, all_gather");
    EXPECT_EQ(log.total(), 2);
    EXPECT_EQ(log.count(CollectiveKind::kAllGather), 1);
    EXPECT_EQ(log.wire_bytes(), 16 + 32); // half of 32 local, half of 64
    log.clear();
    EXPECT_EQ(log.text(), "");
    {
      const CollectiveLog inner;
      full_tensor(d);
      EXPECT_EQ(inner.total(), 1);
    }
    EXPECT_EQ(log.total(), 1);
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor::testing

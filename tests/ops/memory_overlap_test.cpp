// SPDX-License-Identifier: BSD-3-Clause
// Writes to elements that share memory with each other or with an operand.
// LibTorch refuses them only on ranks with elements; here, rank 1 has none.
#include "same_or_error.h"

#include <ATen/ops/_foreach_add.h>

namespace dtensor::testing {
namespace TEST_SOURCE {

using Write = std::function<void(const at::Tensor&)>;

// A row of size 1, which rank 0 holds, expanded to three columns.
at::Tensor expanded(const DeviceMesh& mesh) {
  return distribute_tensor(at::ones({1, 1}), mesh, {Shard(0)}).expand({1, 3});
}

TEST(MemoryOverlap, WritesToExpandedTensorsAreRefused) {
  const std::vector<std::pair<std::string, Write>> writes = {
      {"aten::add_.Scalar", [](const at::Tensor& x) { x.add_(1); }},
      {"aten::add_.Tensor", [](const at::Tensor& x) { x.add_(x.clone()); }},
      {"aten::copy_", [](const at::Tensor& x) { x.copy_(x.clone()); }},
      {"aten::relu_", [](const at::Tensor& x) { x.relu_(); }},
      {"aten::normal_", [](const at::Tensor& x) { x.normal_(); }},
      {"aten::add_.Scalar",
       [](const at::Tensor& x) { at::_foreach_add_({x}, at::Scalar(1)); }},
  };
  for (const auto& write : writes) {
    const auto error = error_on_ranks(
        [&](const DeviceMesh& mesh) { write.second(expanded(mesh)); });
    EXPECT_EQ(
        error,
        "[" + write.first +
            "] self, f32[1, 3; 1, 0] on (tp=2): S(0), is expanded, so elements "
            "share memory. Write to a clone() of it.");
  }
}

TEST(MemoryOverlap, OneNumberIsWrittenToExpandedTensors) {
  const std::vector<Write> writes = {
      [](const at::Tensor& x) { x.fill_(3); },
      [](const at::Tensor& x) { x.zero_(); },
      [](const at::Tensor& x) { x.masked_fill_(x > 0, 4); }};
  for (const auto& write : writes) {
    const auto plain = at::ones({2, 1});
    write(plain.expand({2, 3}));
    run_ranks(3, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {3});
      const auto x = distribute_tensor(at::ones({2, 1}), mesh, {Shard(0)});
      write(x.expand({2, 3}));
      EXPECT_TRUE(at::equal(full_tensor(x), plain));
    });
  }
}

// An expanded tensor without elements is written by no rank.
TEST(MemoryOverlap, ExpandedTensorsWithoutElements) {
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto x = distribute_tensor(at::ones({0, 1}), mesh, {Shard(0)});
    EXPECT_EQ(x.expand({0, 3}).add_(1).numel(), 0);
  });
}

TEST(MemoryOverlap, OperandsThatShareAllOrNoElementsAreWritten) {
  const auto write = [](const at::Tensor& x) {
    x.slice(0, 2).copy_(x.slice(0, 0, 2));
    x.add_(x);
    x.select(0, 0).mul_(x.select(0, 1));
    return x;
  };
  const auto plain = write(at::arange(8.0).view({4, 2}));
  run_ranks(3, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {3});
    for (const auto& p : {Placement(Shard(1)), Placement(Replicate())}) {
      const auto x = distribute_tensor(at::arange(8.0).view({4, 2}), mesh, {p});
      EXPECT_TRUE(at::equal(full_tensor(write(x)), plain));
    }
  });
}

// Parameters of one buffer are separate tensors, although each begins at the
// first element of its own DTensor.
TEST(MemoryOverlap, TensorsOfOneBufferDoNotOverlap) {
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto buffer = at::arange(2.0);
    const at::Tensor a =
        DTensor::from_local(buffer.narrow(0, 0, 1), mesh, {Shard(0)});
    const at::Tensor b =
        DTensor::from_local(buffer.narrow(0, 1, 1), mesh, {Replicate()});
    a.copy_(b);
    EXPECT_TRUE(at::equal(full_tensor(a), at::ones({2})));
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor::testing

// SPDX-License-Identifier: BSD-3-Clause
// torch.distributed.checkpoint and safetensors read the checkpoints of this
// library. This library reads their checkpoints, too (exchange.py).
#include <dtensor/checkpoint/checkpoint.h>
#include <tests/checkpoint/exchange.h>
#include <tests/parallel/modules.h>
#include <tests/weights/files.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace test_modules;
using test_checkpoint::exchange;
using test_checkpoint::kWhyNot;
using test_weights::Folder;

struct Tensor {
  std::string name;
  std::vector<int64_t> sizes;
  at::ScalarType dtype;
};

// The tensors of exchange.py.
const std::vector<Tensor> kTensors = {
    {"even", {8, 12}, at::kDouble},
    {"uneven", {7, 5, 2}, at::kFloat},
    {"half", {5, 3}, at::kBFloat16},
    {"flags", {5, 3}, at::kBool},
    {"counts", {6}, at::kLong},
    {"number", {}, at::kFloat},
    {"large", {1200, 1000}, at::kFloat}};

at::Tensor value_of(const Tensor& tensor) {
  const auto n = c10::multiply_integers(tensor.sizes);
  const auto all = at::arange(n, at::kLong) * 37 % 101 - 50;
  const auto typed =
      tensor.dtype == at::kBool ? all.gt(0) : all.to(tensor.dtype);
  return typed.view(tensor.sizes);
}

// Returns the tensors, sharded along alternating dimensions where they exist.
StateDict spread(const DeviceMesh& mesh, size_t begin, bool zeros) {
  StateDict all;
  for (size_t i = 0; i < kTensors.size(); ++i) {
    const auto value = value_of(kTensors[i]);
    const auto dim = static_cast<int64_t>((i + begin) % 2);
    const Placement layout = value.dim() > dim ? Shard(dim) : Replicate();
    all.insert(
        kTensors[i].name,
        distribute_tensor(
            zeros ? at::zeros_like(value) : value,
            mesh,
            {layout},
            std::nullopt));
  }
  return all;
}

TEST(SlowPythonCheckpoint, IsReadByUs) {
  const Folder folder;
  const auto path = folder / "python";
  if (exchange("write", path) == 77) {
    GTEST_SKIP() << kWhyNot;
  }
  for (const int64_t ranks : {1, 2, 4}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks});
      for (const size_t begin : {0U, 1U}) {
        auto loaded = spread(mesh, begin, /*zeros=*/true);
        load_checkpoint(path, {.tensors = &loaded});
        for (const auto& tensor : kTensors) {
          EXPECT_TRUE(at::equal(full(loaded[tensor.name]), value_of(tensor)))
              << tensor.name << " on " << ranks;
        }
      }
    });
  }
}

TEST(SlowPythonCheckpoint, IsWhatWeWrite) {
  const Folder folder;
  const auto path = folder / "ours";
  run_ranks(3, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {3});
    auto saved = spread(mesh, 0, /*zeros=*/false);
    save_checkpoint(path, {.tensors = &saved});
  });
  if (exchange("read", path) == 77) {
    GTEST_SKIP() << kWhyNot;
  }
}

// A local shard that consists of several boxes is stored in several files.
TEST(SlowPythonCheckpoint, IsWhatWeWriteOfStridedParts) {
  const Folder folder;
  const auto path = folder / "ours";
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    StateDict saved;
    for (const auto& tensor : kTensors) {
      const Placement layout =
          tensor.sizes.empty() ? Replicate() : StridedShard(0, 3);
      saved.insert(
          tensor.name,
          distribute_tensor(value_of(tensor), mesh, {layout}, std::nullopt));
    }
    save_checkpoint(path, {.tensors = &saved});
  });
  if (exchange("read", path) == 77) {
    GTEST_SKIP() << kWhyNot;
  }
}

TEST(SlowPythonCheckpoint, IsUnshardedIfSavedUnsharded) {
  const Folder folder;
  for (const int64_t bytes : {int64_t{1} << 30, int64_t{500}}) {
    const auto path = folder / std::to_string(bytes);
    run_ranks(3, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {3});
      auto saved = spread(mesh, 0, /*zeros=*/false);
      save_checkpoint(
          path, {.tensors = &saved}, {.full = true, .max_file_bytes = bytes});
    });
    if (exchange("full", path) == 77) {
      GTEST_SKIP() << kWhyNot;
    }
  }
}

} // namespace TEST_SOURCE
} // namespace dtensor

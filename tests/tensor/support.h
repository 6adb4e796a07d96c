// SPDX-License-Identifier: BSD-3-Clause
// Helpers of the tests of this layer: full tensors that are equal on all ranks,
// local tensors of them, and a counter of collectives.
#pragma once

#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/comm/observer.h>
#include <dtensor/comm/ranks.h>
#include <dtensor/layout/text.h>
#include <dtensor/tensor/dtensor.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <string>
#include <vector>

#include "tests/comm/expect_error.h"

namespace dtensor::test {

/// Returns 1, 2, 3, ... in this shape, the same on every rank.
inline at::Tensor counting(
    at::IntArrayRef sizes,
    at::ScalarType dtype = at::kDouble) {
  return at::arange(1, c10::multiply_integers(sizes) + 1, at::kDouble)
      .reshape(sizes)
      .to(dtype);
}

/// One placement of every kind.
inline const std::vector<Placement> kKinds = {
    Replicate(),
    Shard(0),
    Shard(1),
    StridedShard(0, 2),
    Shard(0, 3),
    Partial(),
    Partial(ReduceOp::kAvg)};

/// Returns a mesh of this shape over all ranks, with dimensions a, b, c.
inline DeviceMesh mesh_of(const std::vector<int64_t>& shape) {
  const std::vector<std::string> names = {"a", "b", "c"};
  return init_device_mesh(
      at::kCPU,
      shape,
      std::vector<std::string>(
          names.begin(), names.begin() + static_cast<int64_t>(shape.size())));
}

/// Returns this rank's local tensor of `full` in `layout`. Terms of a Partial
/// layout differ between ranks.
inline at::Tensor part_of(
    const at::Tensor& full,
    const DeviceMesh& mesh,
    const Placements& layout) {
  auto term = full.detach();
  auto cuts = layout;
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    auto& p = cuts[static_cast<size_t>(m)];
    if (!p.is_partial()) {
      continue;
    }
    const auto n = static_cast<double>(mesh.size(m));
    const auto r = static_cast<double>(mesh.get_local_rank(m));
    switch (p.reduce_op()) {
      case ReduceOp::kMax:
        term = term - r;
        break;
      case ReduceOp::kMin:
        term = term + r;
        break;
      case ReduceOp::kAvg: // weights 1, 2, ... with mean 1
        term = term * (r + 1) * 2 / (n + 1);
        break;
      default: // weights 1, 2, ... with sum 1
        term = term * (r + 1) * 2 / (n * (n + 1));
    }
    p = Replicate();
  }
  return to_local(distribute_tensor(term, mesh, cuts, std::nullopt)).clone();
}

/// Returns `full` in `layout`, as a leaf.
inline DTensor placed(
    const at::Tensor& full,
    const DeviceMesh& mesh,
    const Placements& layout,
    bool requires_grad = false) {
  auto result = DTensor::from_local(
      part_of(full, mesh, layout), mesh, layout, {.shape = full.sizes().vec()});
  result.set_requires_grad(requires_grad);
  return result;
}

inline at::Tensor whole(const at::Tensor& t) {
  return DTensor(t).full_tensor();
}

inline std::string spec_text(const at::Tensor& t) {
  return to_string(*DTensor(t).spec());
}

/// Counts this rank's collectives.
class Counter final : public CommObserver {
 public:
  void on_collective(const CollectiveEvent& event) override {
    ++counts_[std::string(to_string(event.kind))];
    bytes_ += event.payload_bytes;
  }
  /// Returns "1 all_gather, 2 all_reduce" and resets the counts.
  std::string take() {
    std::string text;
    for (const auto& [kind, count] : counts_) {
      text += (text.empty() ? "" : ", ") + std::to_string(count) + " " + kind;
    }
    counts_.clear();
    return text;
  }
  int64_t take_bytes() {
    return std::exchange(bytes_, 0);
  }

 private:
  std::map<std::string, int> counts_;
  int64_t bytes_ = 0;
  CommObserverGuard guard_{*this};
};

/// Runs `fn` on meshes of these shapes, one after the other.
template <typename Fn>
void on_meshes(const std::vector<std::vector<int64_t>>& shapes, const Fn& fn) {
  for (const auto& shape : shapes) {
    run_ranks(c10::multiply_integers(shape), [&] { fn(mesh_of(shape)); });
  }
}

inline void expect_same(const at::Tensor& mine, const at::Tensor& truth) {
  ASSERT_EQ(mine.sizes(), truth.sizes());
  EXPECT_EQ(mine.scalar_type(), truth.scalar_type());
  EXPECT_TRUE(at::allclose(mine.detach(), truth.detach(), 1e-12, 1e-12))
      << mine << "\n"
      << truth;
}

} // namespace dtensor::test

// SPDX-License-Identifier: BSD-3-Clause
// The truth of everything that computes with DTensors: the same on plain
// tensors. For tests of operators, rules (register_sharding) and functions.
//
//   testing::expect_same_as_plain(
//       [](const std::vector<at::Tensor>& x) {
//         return std::vector<at::Tensor>{mylib::scale_rows(x[0], x[1])};
//       },
//       {testing::seeded_randn({5, 3}, at::kDouble, 1).requires_grad_(),
//        testing::seeded_randn({5}, at::kDouble, 2).requires_grad_()});
//
// Link dtensor::testing.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/api.h>
#include <dtensor/layout/mesh.h>
#include <dtensor/layout/placement.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace dtensor::testing {

/// A DTensor of `full` in any layout, also of terms of a Partial(sum), without
/// communication. All ranks give the same `full`.
DTENSOR_API at::Tensor
in_layout(const at::Tensor& full, const DeviceMesh& mesh, PlacementsRef layout);

/// What is tried. It is called on plain tensors and on DTensors, often, and has
/// to compute the same each time; what it returns may be undefined.
using TensorFunction =
    std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

/// Options of expect_same_as_plain.
struct SameAsPlainOptions {
  /// Shapes of the meshes, whose ranks are threads.
  std::vector<std::vector<int64_t>> meshes = {{1}, {2}, {3}, {2, 2}};
  /// The placements that each operand may have on a mesh dimension. Default:
  /// Replicate, every Shard, and Partial if it is of floating point.
  std::vector<Placements> placements = {};
  /// How many combinations are drawn for a mesh, the same each time; all are
  /// tried if there are no more.
  int64_t layouts = 40;
  /// The largest difference is atol + rtol * |plain|.
  double rtol = 1e-9;
  double atol = 1e-9;
};

/// Calls `fn` on the plain `operands` and, in many layouts on each mesh, on
/// DTensors of them: recorded by autograd, without, and in inference mode.
/// Throws RuntimeError, with mesh, layouts and what differs, if a result has
/// another shape, dtype or value than the plain one, or a gradient of an
/// operand that requires one; and whatever `fn` throws, after the same. Not
/// from inside a rank. An operator that may refuse a layout is tried with
/// `placements` that leave it out.
/// Python: DTensorConverter of torch.testing._internal, which its own tests
/// use.
DTENSOR_API void expect_same_as_plain(
    const TensorFunction& fn,
    const std::vector<at::Tensor>& operands,
    const SameAsPlainOptions& options = {});

} // namespace dtensor::testing

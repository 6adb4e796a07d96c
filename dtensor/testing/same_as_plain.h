// SPDX-License-Identifier: BSD-3-Clause
// expect_same_as_plain: compares a computation on DTensors with the same
// computation on plain tensors. For tests of operators, rules
// (register_sharding) and functions.
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

/// Returns a DTensor of `full` in any layout, including Partial(sum) with
/// nontrivial terms, without communication. All ranks must pass the same
/// `full`.
DTENSOR_API at::Tensor
in_layout(const at::Tensor& full, const DeviceMesh& mesh, PlacementsRef layout);

/// The function under test. The function is called repeatedly, on plain tensors
/// and on DTensors, and must compute the same values each time. The function
/// may return undefined tensors.
using TensorFunction =
    std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

/// Options of expect_same_as_plain.
struct SameAsPlainOptions {
  /// Shapes of the meshes. The ranks are threads.
  std::vector<std::vector<int64_t>> meshes = {{1}, {2}, {3}, {2, 2}};
  /// Placements to try for each operand on a mesh dimension. Default:
  /// Replicate, every Shard, and Partial if the operand is floating-point.
  std::vector<Placements> placements = {};
  /// Maximum number of layout combinations per mesh. If there are more, a
  /// sample of this number is tried, the same each time.
  int64_t layouts = 40;
  /// Tolerances: every difference is at most atol + rtol * |plain|.
  double rtol = 1e-9;
  double atol = 1e-9;
};

/// Calls `fn` on the plain `operands` and, in many layouts on each mesh, on
/// DTensors of them: with autograd, without autograd, and in inference mode.
/// Throws RuntimeError if a result differs from the plain result in shape,
/// dtype or value, or if the gradient of an operand differs. The error names
/// the mesh, the layouts and the difference. Exceptions of `fn` are rethrown
/// with the same prefix. Must not be called inside a rank. If the operator does
/// not support some layouts, leave them out of `placements`.
/// Python: DTensorConverter of torch.testing._internal, which only Python's own
/// tests use.
DTENSOR_API void expect_same_as_plain(
    const TensorFunction& fn,
    const std::vector<at::Tensor>& operands,
    const SameAsPlainOptions& options = {});

} // namespace dtensor::testing

// SPDX-License-Identifier: BSD-3-Clause
// New DTensors: every rank makes its own part, nothing is communicated.
//
//   auto w = dtensor::zeros({8, 6}, mesh, {Shard(0)});
//   auto b = dtensor::full({6}, 0.5, mesh);               // replicated
//   auto p = dtensor::ones({8}, mesh, {Shard(0)}, {.requires_grad = true});
//
// Python: torch.distributed.tensor.zeros, ones, empty, full.
#pragma once

#include <c10/core/Scalar.h>
#include <dtensor/tensor/dtensor.h>

#include <optional>

namespace dtensor {

/// Options of the functions below.
struct FactoryOptions {
  /// Default: the default dtype; full: that of the number.
  std::optional<at::ScalarType> dtype = std::nullopt;
  /// The result is a leaf that gets a gradient.
  bool requires_grad = false;
};

/// A tensor of global shape `size` on `mesh` (default: the current one,
/// comm/mesh_scope.h) in layout `placements` (default: Replicate on every mesh
/// dimension), on the device type of the mesh.
/// Throws ValueError for placements unlike the mesh in number or a negative
/// size, IndexError for a shard dimension that the tensor does not have.
DTENSOR_API at::Tensor zeros(
    SizesRef size,
    const DeviceMesh& mesh = {},
    PlacementsRef placements = {},
    const FactoryOptions& options = {});

/// As zeros, with values that happen to be there.
DTENSOR_API at::Tensor empty(
    SizesRef size,
    const DeviceMesh& mesh = {},
    PlacementsRef placements = {},
    const FactoryOptions& options = {});

/// As zeros. Throws ValueError for Partial: the ones would be added up.
DTENSOR_API at::Tensor ones(
    SizesRef size,
    const DeviceMesh& mesh = {},
    PlacementsRef placements = {},
    const FactoryOptions& options = {});

/// As ones, with `value` everywhere.
DTENSOR_API at::Tensor full(
    SizesRef size,
    const at::Scalar& value,
    const DeviceMesh& mesh = {},
    PlacementsRef placements = {},
    const FactoryOptions& options = {});

} // namespace dtensor

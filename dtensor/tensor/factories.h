// SPDX-License-Identifier: BSD-3-Clause
// Factories of DTensors. Every rank creates its local shard; nothing is
// communicated.
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
  /// The dtype. Default: the default dtype; for full(): the dtype of the
  /// number.
  std::optional<at::ScalarType> dtype = std::nullopt;
  /// Makes the result a leaf that requires a gradient.
  bool requires_grad = false;
};

/// Returns a tensor of zeros of global shape `size` on `mesh` (default: the
/// current mesh, comm/mesh_scope.h) in layout `placements` (default: Replicate
/// on every mesh dimension), on the device type of the mesh. Throws ValueError
/// for a wrong number of placements or a negative size, IndexError for a shard
/// dimension that the tensor does not have.
DTENSOR_API at::Tensor zeros(
    SizesRef size,
    const DeviceMesh& mesh = {},
    PlacementsRef placements = {},
    const FactoryOptions& options = {});

/// Returns an uninitialized tensor; otherwise as zeros().
DTENSOR_API at::Tensor empty(
    SizesRef size,
    const DeviceMesh& mesh = {},
    PlacementsRef placements = {},
    const FactoryOptions& options = {});

/// Returns a tensor of ones; otherwise as zeros(). Throws ValueError for
/// Partial, as the ones would be summed.
DTENSOR_API at::Tensor ones(
    SizesRef size,
    const DeviceMesh& mesh = {},
    PlacementsRef placements = {},
    const FactoryOptions& options = {});

/// Returns a tensor filled with `value`; otherwise as ones().
DTENSOR_API at::Tensor full(
    SizesRef size,
    const at::Scalar& value,
    const DeviceMesh& mesh = {},
    PlacementsRef placements = {},
    const FactoryOptions& options = {});

} // namespace dtensor

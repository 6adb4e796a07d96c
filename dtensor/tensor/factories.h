// SPDX-License-Identifier: BSD-3-Clause
// Factories of DTensors. Every rank creates its local shard; nothing is
// communicated.
//
//   auto w = dtensor::zeros({8, 6}, mesh, {Shard(0)});
//   auto b = dtensor::full({6}, 0.5, mesh);               // replicated
//   auto p = dtensor::ones({8}, mesh, {Shard(0)}, {.requires_grad = true});
//
// Python: torch.distributed.tensor.zeros, ones, empty, full, linspace,
// logspace.
#pragma once

#include <c10/core/Scalar.h>
#include <dtensor/tensor/dtensor.h>

#include <optional>

namespace dtensor {

/// Options of the functions below.
struct FactoryOptions {
  /// The dtype. Default: the default dtype; for full(): the dtype of the
  /// number; for linspace() and logspace(): complex if a number is complex.
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

/// Returns a 1-D tensor of `steps` values, evenly spaced from `start` to `end`,
/// both included; otherwise as ones(). Each rank computes only the values of
/// its shard. Throws ValueError for negative `steps`. Call item() on a tensor
/// to pass it as `start` or `end`.
/// Python: torch.distributed.tensor.linspace (since 2.14).
DTENSOR_API at::Tensor linspace(
    const at::Scalar& start,
    const at::Scalar& end,
    int64_t steps,
    const DeviceMesh& mesh = {},
    PlacementsRef placements = {},
    const FactoryOptions& options = {});

/// Returns `base` to the power of each value of linspace(); otherwise as
/// linspace(). Python: torch.distributed.tensor.logspace (since 2.14).
DTENSOR_API at::Tensor logspace(
    const at::Scalar& start,
    const at::Scalar& end,
    int64_t steps,
    double base = 10.0,
    const DeviceMesh& mesh = {},
    PlacementsRef placements = {},
    const FactoryOptions& options = {});

} // namespace dtensor

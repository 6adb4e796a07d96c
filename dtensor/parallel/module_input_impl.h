// SPDX-License-Identifier: BSD-3-Clause
// What a module's input becomes before an operator gets it.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/parallel/shared_input_impl.h>
#include <dtensor/parallel/style_mesh_impl.h>
#include <dtensor/tensor/dtensor.h>
#include <dtensor/tensor/replica_observer_impl.h>

namespace dtensor::detail {

/// What from_local() is told of a plain input.
FromLocalOptions known_shape(const at::Tensor& x, const InputLayouts& layouts);

/// `x`, or the DTensor of which it is this rank's part. Throws ValueError if it
/// has not as many features as that.
at::Tensor as_dtensor(
    const at::Tensor& x,
    const StyleMesh& where,
    const InputLayouts& layouts);

/// That, in the layout that the module computes with. Throws ValueError if it
/// is on another mesh than the module.
at::Tensor prepare(
    const at::Tensor& distributed,
    const StyleMesh& where,
    const InputLayouts& layouts);

/// Tells the observers of replicas of a tensor that enters or leaves a module:
/// a DTensor, or a plain tensor in layout `plain`.
void notify_module_tensor(
    ReplicaKind kind,
    const at::Tensor& x,
    const StyleMesh& where,
    const Placement& plain);

} // namespace dtensor::detail

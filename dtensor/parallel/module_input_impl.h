// SPDX-License-Identifier: BSD-3-Clause
// Conversion of a module's input before an operator gets it.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/parallel/shared_input_impl.h>
#include <dtensor/parallel/style_mesh_impl.h>
#include <dtensor/tensor/dtensor.h>
#include <dtensor/tensor/replica_observer_impl.h>

namespace dtensor::detail {

/// Returns the options of from_local() for a plain input.
FromLocalOptions known_shape(const at::Tensor& x, const InputLayouts& layouts);

/// Returns `x`, or, if plain, the DTensor with `x` as the local tensor. Throws
/// ValueError if the number of features does not match.
at::Tensor as_dtensor(
    const at::Tensor& x,
    const StyleMesh& where,
    const InputLayouts& layouts);

/// Redistributes the input to the layout that the module computes with. Throws
/// ValueError if its mesh is not the module's.
at::Tensor prepare(
    const at::Tensor& distributed,
    const StyleMesh& where,
    const InputLayouts& layouts);

/// Notifies replica observers of a tensor that enters or leaves a module: a
/// DTensor, or a plain tensor in layout `plain`.
void notify_module_tensor(
    ReplicaKind kind,
    const at::Tensor& x,
    const StyleMesh& where,
    const Placement& plain);

} // namespace dtensor::detail

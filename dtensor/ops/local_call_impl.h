// SPDX-License-Identifier: BSD-3-Clause
// What a decided call does on this rank, whether autograd sees the tensors of
// all ranks (ops/dispatch.cpp) or the local ones (ops/region.cpp).
#pragma once

#include <dtensor/ops/op_info_impl.h>
#include <dtensor/ops/strategy.h>

namespace dtensor::detail {

/// Whether a call with this decision needs nothing but the local operator.
bool is_local_only(const OpInfo& info, const Decision& decision);

/// A spec on the call's mesh; to be taken before the arguments turn local.
SpecPtr any_spec(
    const Decision& decision,
    const torch::jit::Stack& stack,
    size_t num_args);

/// A plain tensor in the layout that is wanted of it. A number in disguise
/// stays one.
at::Tensor placed_plain(
    const at::Tensor& plain,
    const SpecPtr& wanted,
    const Spec& mesh_like);

/// This rank's part of a tensor of that layout, on the meta device.
at::Tensor local_without_data(const Spec& spec);
/// The DTensor of such a part.
at::Tensor without_data(const SpecPtr& spec);

/// Runs the operator, or what its rule has in its place, on the local tensors
/// that stand on the stack, with the arguments that were decided.
void call_local(
    const OpInfo& info,
    const Decision& decision,
    torch::jit::Stack* stack);

const SpecPtr& output_spec(const Decision& decision, size_t index);

/// A rank outside the mesh has nothing to compute. `inputs` are those that
/// require gradients, if this is above autograd.
void outside_mesh(
    const OpInfo& info,
    const Decision& decision,
    const SpecPtr& any,
    at::TensorList inputs,
    torch::jit::Stack* stack);

} // namespace dtensor::detail

// SPDX-License-Identifier: BSD-3-Clause
// Execution of a decided call on this rank. Serves calls below autograd
// (ops/path/dispatch.cpp) and regions, where autograd records the local tensors
// (ops/path/region.cpp).
#pragma once

#include <dtensor/api.h>
#include <dtensor/ops/path/op_info_impl.h>
#include <dtensor/ops/strategy.h>

namespace dtensor::detail {

/// Returns true if the rule's local kernel takes the place of the operator.
bool calls_kernel(const OpInfo& info, const Decision& decision);

/// Returns true if a call with this decision needs nothing but the local
/// operator.
bool is_local_only(const OpInfo& info, const Decision& decision);

/// Returns a spec on the call's mesh. Call this function before the arguments
/// become local tensors.
SpecPtr any_spec(
    const Decision& decision,
    const torch::jit::Stack& stack,
    size_t num_args);

/// Returns a plain tensor in the layout `wanted`. A wrapped number stays a
/// wrapped number.
at::Tensor placed_plain(
    const at::Tensor& plain,
    const SpecPtr& wanted,
    const Spec& mesh_like);

/// Returns a DTensor of layout `spec` whose local tensor has no data.
DTENSOR_INTERNAL_API at::Tensor without_data(const SpecPtr& spec);

/// Runs the operator, or its rule's local kernel, on the local tensors on the
/// stack, with the arguments of the decision.
void call_local(
    const OpInfo& info,
    const Decision& decision,
    torch::jit::Stack* stack);

/// Returns the layout of result `index`, whose local tensor is `local`. `any`
/// is the spec of an operand or result.
SpecPtr result_spec(
    const OpInfo& info,
    const Decision& decision,
    const Spec& any,
    const at::Tensor& local,
    size_t index);

/// Handles a call on a rank outside the mesh, which computes nothing. Above
/// autograd, `inputs` are the tensors that require gradients.
void outside_mesh(
    const OpInfo& info,
    const Decision& decision,
    const SpecPtr& any,
    at::TensorList inputs,
    torch::jit::Stack* stack);

} // namespace dtensor::detail

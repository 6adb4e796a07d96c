// SPDX-License-Identifier: BSD-3-Clause
// Arguments of kernels that need the full, replicated tensor.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace dtensor::detail {

/// Returns an argument as a replicated local tensor, and reports the
/// redistribution. Throws on ranks outside the mesh.
at::Tensor replicated_argument(
    const c10::OperatorHandle& op,
    const at::Tensor& t,
    const char* argument);

/// Runs an operator on replicated arguments, for a kernel whose results depend
/// on all values. The results are replicated. Throws as replicated_argument()
/// does, and for operands on different meshes.
void call_on_replicated(
    const c10::OperatorHandle& op,
    torch::jit::Stack* stack);

} // namespace dtensor::detail

// SPDX-License-Identifier: BSD-3-Clause
// whole_argument: an argument of a kernel that needs all of its values.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

namespace dtensor::detail {

/// Returns an argument as a replicated local tensor, and reports its
/// redistribution. Throws on ranks outside the mesh.
at::Tensor whole_argument(
    const c10::OperatorHandle& op,
    const at::Tensor& t,
    const char* argument);

} // namespace dtensor::detail

// SPDX-License-Identifier: BSD-3-Clause
// Kernels of operators, installed when the library loads.
#pragma once

#include <dtensor/ops/op_info_impl.h>

#include <memory>

namespace dtensor::detail {

/// Replaces the operator's kernels by kernels for the current rules. Must not
/// be called while ranks run.
void reinstall_kernels(const c10::OperatorHandle& op);

/// Returns the OpInfo of the operator's kernels. For an operator that keeps
/// LibTorch's kernels, it is the OpInfo that its own kernels would have.
/// Callable from any thread.
std::shared_ptr<const OpInfo> info_of(const c10::OperatorHandle& op);

} // namespace dtensor::detail

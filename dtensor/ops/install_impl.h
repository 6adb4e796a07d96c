// SPDX-License-Identifier: BSD-3-Clause
// The kernels that operators have, which the library installs when it loads.
#pragma once

#include <dtensor/ops/op_info_impl.h>

#include <memory>

namespace dtensor::detail {

/// Puts kernels under the operator in place of those that it has, made for the
/// rules as they are now. Not while ranks run.
void install_anew(const c10::OperatorHandle& op);

/// What the operator's kernels know of it; of one that keeps LibTorch's, what
/// they would. From any thread.
std::shared_ptr<const OpInfo> info_of(const c10::OperatorHandle& op);

} // namespace dtensor::detail

// SPDX-License-Identifier: BSD-3-Clause
// Variants that follow from another operator's rule.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <optional>

namespace dtensor::detail {

/// For op.out: the overload that takes the same arguments and returns the
/// result. Nothing if there is none.
std::optional<c10::OperatorHandle> functional_of_out(
    const c10::OperatorHandle& op);

/// Calls `functional` and copies what it returns into the out arguments.
void run_out_variant(
    const c10::OperatorHandle& op,
    const c10::OperatorHandle& functional,
    torch::jit::Stack* stack);

} // namespace dtensor::detail

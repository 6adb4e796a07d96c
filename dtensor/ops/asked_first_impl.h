// SPDX-License-Identifier: BSD-3-Clause
// What an operator goes through under kAskedFirstKey.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <dtensor/tensor/asked_first_impl.h>

namespace dtensor::detail {

using SeesOperator = void (*)(
    const c10::OperatorHandle&,
    c10::DispatchKeySet,
    torch::jit::Stack*);

/// Who sees the operators of threads that include the key. One layer does.
void set_sees_all(SeesOperator sees);

/// As if the key did not exist, and the bit of the meta device did not outrank
/// that of DTensors.
void go_on(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack);

/// The fallback itself.
void ask_first(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack);

/// The kernel of the operator that set_data() begins with: a parameter keeps
/// its source. Throws for a tensor that takes over the data of a parameter.
void before_set_data(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack);

} // namespace dtensor::detail

// SPDX-License-Identifier: BSD-3-Clause
// Interception of operators under kInterceptKey, before all other keys.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <dtensor/api.h>
#include <dtensor/tensor/dispatch_keys_impl.h>

namespace dtensor::detail {

using Interceptor = void (*)(
    const c10::OperatorHandle&,
    c10::DispatchKeySet,
    torch::jit::Stack*);

/// Sets the handler of operators on threads that include the key. Only one
/// layer may set a handler.
DTENSOR_INTERNAL_API void set_interceptor(Interceptor sees);

/// Redispatches as if the key did not exist and the backend bit of DTensors
/// preceded the bit of the meta device.
DTENSOR_INTERNAL_API void go_on(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack);

/// The fallback kernel of the key.
void intercept_operator(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack);

/// Kernel of the operator that set_data() calls first. A parameter keeps its
/// source. Throws for a tensor that would take over the data of a parameter.
void before_set_data(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack);

} // namespace dtensor::detail

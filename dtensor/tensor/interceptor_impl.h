// SPDX-License-Identifier: BSD-3-Clause
// Adds and removes kInterceptKey, the dispatch key of the interceptor, which
// handles an operator before any other key does. DTensors on the meta device
// have the key, and so do parameters that operators receive unsharded
// (ops/unsharded_source_impl.h). A DeferredInit scope includes the key. The
// key's fallback is in ops/interceptor.cpp.
//
// A DTensor on the meta device needs the key because the meta backend bit
// outranks all other backend bits. If another operand is a plain meta tensor,
// LibTorch would not call the DTensor's kernels.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/torch_internals.h>

namespace dtensor::detail {

/// Adds the key to `t`.
void add_intercept_key(const at::Tensor& t);
/// Removes the key from `t`.
void remove_intercept_key(const at::Tensor& t);

} // namespace dtensor::detail

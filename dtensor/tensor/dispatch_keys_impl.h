// SPDX-License-Identifier: BSD-3-Clause
// Dispatch keys of the interceptor and of implicit replication.
//
// kInterceptKey is the key of the interceptor, which handles an operator before
// any other key does. DTensors on the meta device have the key. Parameters that
// operators receive unsharded have the key, too
// (ops/unsharded/unsharded_source_impl.h). A DeferredInit scope includes the
// key. The key's fallback is in ops/unsharded/interceptor.cpp.
//
// A DTensor on the meta device needs the key because the meta backend bit
// precedes all other backend bits. If another operand is a plain meta tensor,
// LibTorch would not call the DTensor's kernels.
//
// An implicit_replication() scope includes kReplicationKey. Autograd propagates
// the key to the backward pass's threads.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <dtensor/api.h>
#include <dtensor/torch_internals.h>

namespace dtensor::detail {

/// Adds kInterceptKey to `t`.
DTENSOR_INTERNAL_API void add_intercept_key(const at::Tensor& t);
/// Removes it.
void remove_intercept_key(const at::Tensor& t);

/// True inside an implicit_replication() scope of this thread.
inline bool in_implicit_replication() {
  return c10::impl::tls_is_dispatch_key_included(kReplicationKey);
}

} // namespace dtensor::detail

// SPDX-License-Identifier: BSD-3-Clause
// An implicit_replication() scope includes kReplicationKey, which the thread
// state of a backward pass carries along.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <dtensor/torch_internals.h>

namespace dtensor::detail {

/// Whether this thread is in such a scope.
inline bool in_implicit_replication() {
  return c10::impl::tls_is_dispatch_key_included(kReplicationKey);
}

} // namespace dtensor::detail

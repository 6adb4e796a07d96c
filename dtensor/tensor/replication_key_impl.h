// SPDX-License-Identifier: BSD-3-Clause
// Implicit replication as a dispatch key: an implicit_replication() scope
// includes kReplicationKey. Autograd propagates the key to the backward pass's
// threads.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <dtensor/torch_internals.h>

namespace dtensor::detail {

/// True inside an implicit_replication() scope of this thread.
inline bool in_implicit_replication() {
  return c10::impl::tls_is_dispatch_key_included(kReplicationKey);
}

} // namespace dtensor::detail

// SPDX-License-Identifier: BSD-3-Clause
// The dispatch key that an implicit_replication() scope includes, which the
// thread state of a backward pass carries along. LibTorch keeps it for tests of
// its own and registers nothing there (TorchInternals.ReplicationKey); it comes
// before autograd and before kRankKey.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <dtensor/torch_internals.h>

namespace dtensor::detail {

constexpr auto kReplicationKey = c10::DispatchKey::TESTING_ONLY_GenericMode;
static_assert(kReplicationKey > c10::DispatchKey::AutogradFunctionality);
static_assert(kReplicationKey > kRankKey);

/// Whether this thread is in such a scope.
inline bool in_implicit_replication() {
  return c10::impl::tls_is_dispatch_key_included(kReplicationKey);
}

} // namespace dtensor::detail

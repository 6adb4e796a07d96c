// SPDX-License-Identifier: BSD-3-Clause
// Calls on meta tensors that the engine makes for itself.
#pragma once

#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace dtensor::detail {

/// Hides calls from Python's TorchDispatchModes while it exists. A mode must
/// not see the engine's own calls on meta tensors: their number depends on
/// caches, and selective checkpoints match calls by their order.
struct WithoutModes {
  c10::impl::ExcludeDispatchKeyGuard guard{c10::python_ks};
};

} // namespace dtensor::detail

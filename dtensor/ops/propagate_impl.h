// SPDX-License-Identifier: BSD-3-Clause
// Shapes of results, which sharding propagation needs, and calls on meta
// tensors that the engine makes for itself.
#pragma once

#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <dtensor/ops/op_call.h>
#include <dtensor/ops/path/op_info_impl.h>

#include <optional>
#include <vector>

namespace dtensor::detail {

/// Returns the global shapes of the results by running the operator on meta
/// tensors. Empty if the operator has no meta kernel.
std::optional<std::vector<OutputMeta>> infer_outputs(
    const OpInfo& info,
    const OpCall& call);

/// Hides calls from Python's TorchDispatchModes while it exists. A mode must
/// not see the engine's own calls on meta tensors: their number depends on
/// caches, and selective checkpoints match calls by their order.
struct WithoutModes {
  c10::impl::ExcludeDispatchKeyGuard guard{c10::python_ks};
};

} // namespace dtensor::detail

// SPDX-License-Identifier: BSD-3-Clause
// Steps of sharding propagation: choices of rules for the whole mesh, and the
// shapes of results.
#pragma once

#include <dtensor/ops/op_call.h>
#include <dtensor/ops/path/op_info_impl.h>
#include <dtensor/ops/strategy.h>

#include <optional>
#include <vector>

namespace dtensor::detail {

/// Returns the choice of a rule for the whole mesh. Throws ValueError if the
/// number of its layouts differs from the number of tensors in the call.
MeshStrategy mesh_candidate(const OpCall& call, const OpRule& rule);

/// Returns the global shapes of the results by running the operator on meta
/// tensors. Empty if the operator has no meta kernel.
std::optional<std::vector<OutputMeta>> infer_outputs(
    const OpInfo& info,
    const OpCall& call);

} // namespace dtensor::detail

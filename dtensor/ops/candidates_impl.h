// SPDX-License-Identifier: BSD-3-Clause
// Strategies among which a call may choose (candidates(), in propagate.h), and
// the choices of rules for the whole mesh.
#pragma once

#include <dtensor/ops/strategy.h>

namespace dtensor::detail {

/// Returns the choice of a rule for the whole mesh. Throws ValueError if the
/// number of its layouts differs from the number of tensors in the call.
MeshStrategy mesh_candidate(const OpCall& call, const OpRule& rule);

} // namespace dtensor::detail

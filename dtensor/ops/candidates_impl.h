// SPDX-License-Identifier: BSD-3-Clause
// What a rule lets a call choose among (candidates(), in propagate.h), or
// chooses itself.
#pragma once

#include <dtensor/ops/strategy.h>

namespace dtensor::detail {

/// What a rule of the whole mesh chooses. Throws ValueError if it gives layouts
/// of more or fewer tensors than the call has.
MeshStrategy mesh_candidate(const OpCall& call, const OpRule& rule);

} // namespace dtensor::detail

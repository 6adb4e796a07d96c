// SPDX-License-Identifier: BSD-3-Clause
// Strategies of operators on several operands that only move elements.
#pragma once

#include <dtensor/ops/strategy.h>

namespace dtensor::detail {

/// Adds the strategy for operands that are all Partial with the same op. It
/// requires that terms are not rounded or wrapped when they are converted to
/// the dtype of the result.
void add_common_partial(
    const OpCall& call,
    int64_t mesh_dim,
    Strategies& strategies);

} // namespace dtensor::detail

// SPDX-License-Identifier: BSD-3-Clause
// Operators on several operands that only move elements.
#pragma once

#include <dtensor/ops/strategy.h>

namespace dtensor::detail {

/// Adds the strategy for operands that are all Partial with the same op. Terms
/// may not be rounded or wrapped to the dtype of the result one by one.
void add_common_partial(
    const OpCall& call,
    int64_t mesh_dim,
    Strategies& strategies);

} // namespace dtensor::detail

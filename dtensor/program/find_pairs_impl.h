// SPDX-License-Identifier: BSD-3-Clause
// Choice of the products of a graph that are sharded by columns or by rows.
#pragma once

#include <dtensor/program/plan_text.h>
#include <dtensor/program/program_state_impl.h>

#include <vector>

namespace dtensor::detail {

/// Returns a style for each sharded product, in the order of the calls.
/// find_tp_plan() (tp_transform.h) documents the styles.
std::vector<PlanEntryText> find_pairs(const ProgramState& state);

} // namespace dtensor::detail

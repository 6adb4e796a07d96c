// SPDX-License-Identifier: BSD-3-Clause
// Which products of a graph are cut by columns, and which by rows.
#pragma once

#include <dtensor/program/plan_text.h>
#include <dtensor/program/program_state_impl.h>

#include <vector>

namespace dtensor::detail {

/// A style for each product that is cut, in the order of the calls; what they
/// are, find_tp_plan() says (tp_transform.h).
std::vector<PlanLine> find_pairs(const ProgramState& state);

} // namespace dtensor::detail

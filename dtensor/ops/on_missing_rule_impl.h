// SPDX-License-Identifier: BSD-3-Clause
// What an on_missing_rule() scope does with a call of an operator that has no
// rule. Decisions made for one are not kept: outside of the scope the same call
// is an error.
#pragma once

#include <dtensor/ops/op_info_impl.h>

#include <memory>

namespace dtensor::detail {

/// Whether a decision is that of such a scope: no other one redistributes and
/// leaves the shapes to the results.
inline bool takes_whole(const Decision& decision) {
  return decision.redistributes && decision.shapes_from_results;
}

/// The decision for operands that are not all replicated: to make them so.
/// Null without a scope, and for an operator that has to see them as they are.
std::shared_ptr<Decision> decide_whole(const OpInfo& info, const OpCall& call);

/// Counts a call with such a decision, and warns at the first one.
void count_missing_rule(
    const OpInfo& info,
    const Decision& decision,
    c10::ArrayRef<c10::IValue> args);

/// Whether a call of an operator without a rule is one that such a scope lets
/// run on whole operands.
bool becomes_whole(const OpInfo& info, c10::ArrayRef<c10::IValue> args);

/// In such a scope, and if the operator is functional and has no rule: replaces
/// the DTensors among the arguments by replicated ones, differentiably.
void replicate_on_missing_rule(const OpInfo& info, torch::jit::Stack* stack);

/// The same for op_ without gradients: by op, which runs whole, and a copy into
/// the first argument. False, and nothing done, for other calls.
bool write_on_missing_rule(const OpInfo& info, torch::jit::Stack* stack);

} // namespace dtensor::detail

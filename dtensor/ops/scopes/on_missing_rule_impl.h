// SPDX-License-Identifier: BSD-3-Clause
// Calls of operators without a rule that gather their operands, inside an
// on_missing_rule() scope or because of OpTraits::gathers. Decisions of these
// calls are not cached, because outside of the scope the same call is an error.
#pragma once

#include <dtensor/ops/path/op_info_impl.h>

#include <memory>

namespace dtensor::detail {

/// Returns true if a decision gathers the operands and takes the result shapes
/// from the local results. Such decisions are made for calls of this kind, and
/// for operators whose result shapes depend on values.
inline bool is_replicated_fallback(const Decision& decision) {
  return decision.redistributes && decision.shapes_from_results;
}

/// Returns the decision that replicates all operands.
std::shared_ptr<Decision> make_replicated_decision(const OpCall& call);

/// Returns the decision that replicates all operands, for operands that are not
/// all replicated. Null for a call that does not gather, and for an operator
/// that must see the operands in their layouts.
std::shared_ptr<Decision> decide_replicated_fallback(
    const OpInfo& info,
    const OpCall& call);

/// Counts a call with such a decision, and warns at the first call.
void count_missing_rule(
    const OpInfo& info,
    const Decision& decision,
    c10::ArrayRef<c10::IValue> args);

/// Returns true if a call of an operator without a rule runs on replicated
/// operands for one of these reasons.
bool uses_replicated_fallback(
    const OpInfo& info,
    c10::ArrayRef<c10::IValue> args);

/// Replaces the DTensors among the arguments by replicated ones,
/// differentiably. Does so only in a call that uses_replicated_fallback(), and
/// only for functional operators without a rule.
void replicate_on_missing_rule(const OpInfo& info, torch::jit::Stack* stack);

/// Runs op_ without gradients as op on replicated operands, followed by a copy
/// into the first argument. Returns false, and does nothing, for other calls.
bool write_on_missing_rule(const OpInfo& info, torch::jit::Stack* stack);

} // namespace dtensor::detail

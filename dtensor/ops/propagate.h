// SPDX-License-Identifier: BSD-3-Clause
// From a call and a rule to a decision: which strategy each mesh dimension
// takes, what that asks of the inputs and makes of the outputs.
//
// Mesh dimensions choose one after the other, each the strategy that moves the
// fewest bytes (ties: that changes the fewest inputs, then the first listed).
#pragma once

#include <dtensor/ops/strategy.h>

namespace dtensor {

/// What propagation must respect besides the rule.
struct Constraints {
  /// Flattened input that is written in place, -1: none. It keeps its layout,
  /// and the first output has the same.
  int written_input = -1;
};

/// Decides a call. `call.outputs` holds the global shapes of the results.
/// Throws RuntimeError if an in-place operator would have to change the layout
/// of the tensor it writes.
DTENSOR_API Decision propagate(
    const OpCall& call,
    const OpRule& rule,
    const Constraints& constraints);

/// The strategies of one mesh dimension that propagate chooses among: those of
/// the rule, their strided variants, and "everything replicated".
DTENSOR_API Strategies
candidates(const OpCall& call, const OpRule& rule, int64_t mesh_dim);

/// Bytes moved to bring this mesh dimension of a tensor to `to`, infinite if it
/// cannot be done. Partial to Shard counts as Partial to Replicate, so that
/// results of partial sums come out whole unless asked.
DTENSOR_API double
transition_cost(const Spec& spec, int64_t mesh_dim, const Placement& to);

} // namespace dtensor

// SPDX-License-Identifier: BSD-3-Clause
// From a call and a rule to a decision: which strategy each mesh dimension
// takes, what that asks of the inputs and makes of the outputs.
//
// Mesh dimensions choose one after the other, each the strategy that moves the
// fewest bytes (ties: that changes the fewest inputs, then the first listed).
#pragma once

#include <dtensor/ops/strategy.h>

#include <optional>
#include <vector>

namespace dtensor {

/// What propagation must respect besides the rule.
struct Constraints {
  /// Flattened input that is written in place, -1: none. It keeps its layout,
  /// and the first output has the same.
  int written_input = -1;
};

/// Whether a mesh dimension may take a strategy.
enum class Standing : uint8_t {
  kPossible,
  kLastResort,      // it cuts a dimension anew that has fewer elements than
                    // ranks: taken if there is nothing else
  kUnreachable,     // an input would go from one reduction to another
  kChangesWritten,  // what is written in place would get another layout
  kMixesReductions, // a layout would have two reductions
};

/// A strategy of one mesh dimension, and what it asks for there.
struct Weighed {
  Strategy strategy;
  Standing standing = Standing::kPossible;
  double bytes = 0; // the transition_cost of all inputs
  int changes = 0;  // inputs that get another placement
  bool may_be_taken() const {
    return standing <= Standing::kLastResort;
  }
};

/// What one mesh dimension chose among, in the order of candidates().
struct Choice {
  std::vector<Weighed> options;
  std::optional<size_t> taken; // nothing if none may be
};

/// Decides a call. `call.outputs` holds the global shapes of the results.
/// `choices`, unless null, gets that of each mesh dimension; none from a rule
/// of the whole mesh. Throws RuntimeError if an in-place operator would have to
/// change the layout of the tensor it writes.
DTENSOR_API Decision propagate(
    const OpCall& call,
    const OpRule& rule,
    const Constraints& constraints,
    std::vector<Choice>* choices = nullptr);

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

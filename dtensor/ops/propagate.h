// SPDX-License-Identifier: BSD-3-Clause
// Sharding propagation: chooses one of a rule's strategies for each mesh
// dimension of a call. The choices give the decision, which holds the layouts
// of inputs and outputs.
//
// The mesh dimensions are decided one after the other. Each takes the strategy
// that moves the fewest bytes. Ties go to the strategy that changes the fewest
// inputs, then to the first in the list.
#pragma once

#include <dtensor/ops/strategy.h>

#include <optional>
#include <vector>

namespace dtensor {

/// Restrictions on the decision besides the rule.
struct Constraints {
  /// Flattened input that is written in place, -1 if none. It keeps its layout,
  /// and the first output has the same layout.
  int written_input = -1;
};

/// Feasibility of a strategy on a mesh dimension.
enum class Feasibility : uint8_t {
  kPossible,
  kLastResort,      // newly shards a dimension with fewer elements than ranks:
                    // taken only if nothing else is possible
  kUnreachable,     // an input would change from one reduction to another
  kChangesWritten,  // the tensor written in place would get another layout
  kMixesReductions, // a layout would have two reductions
};

/// A strategy of one mesh dimension with its cost.
struct ScoredStrategy {
  Strategy strategy;
  Feasibility feasibility = Feasibility::kPossible;
  double bytes = 0; // sum of transition_cost over all inputs
  int changes = 0;  // inputs that get another placement
  /// Returns true if the strategy is feasible.
  bool may_be_taken() const {
    return feasibility <= Feasibility::kLastResort;
  }
};

/// Options of one mesh dimension, in the order of candidates(), and the choice.
struct Choice {
  std::vector<ScoredStrategy> options;
  std::optional<size_t> taken; // nullopt if no option is feasible
};

/// Decides a call. `call.outputs` holds the global shapes of the results. If
/// `choices` is not null, it receives the Choice of each mesh dimension. It
/// stays empty for a rule that decides for the whole mesh. Throws RuntimeError
/// if an in-place operator would have to change the layout of the tensor it
/// writes.
DTENSOR_API Decision propagate(
    const OpCall& call,
    const OpRule& rule,
    const Constraints& constraints,
    std::vector<Choice>* choices = nullptr);

/// Returns the strategies of one mesh dimension among which propagate()
/// chooses: those of the rule, their strided variants, and "everything
/// replicated".
DTENSOR_API Strategies
candidates(const OpCall& call, const OpRule& rule, int64_t mesh_dim);

/// Returns the bytes moved to change the tensor's placement on `mesh_dim` to
/// `to`; infinity if that is impossible. Partial to Shard counts as Partial to
/// Replicate, so that partial sums become replicated unless a rule demands a
/// shard.
DTENSOR_API double
transition_cost(const Spec& spec, int64_t mesh_dim, const Placement& to);

} // namespace dtensor

// SPDX-License-Identifier: BSD-3-Clause
// Sharding propagation: chooses one of a rule's strategies for each mesh
// dimension of a call. The choices give the decision, which holds the layouts
// of inputs and outputs.
//
// The chosen combination of strategies has the least modelled time: the time of
// redistributing the inputs, of the collective that a result will need, and of
// duplicated work. Mesh dimensions on which all inputs are replicated keep them
// replicated. Among combinations of equal time, the one that changes the fewest
// placements of inputs is chosen. Further ties go to the combination that
// shards the results on most mesh dimensions, then to the first in the lists.
// docs/concepts/operators.md describes the cost.
#pragma once

#include <dtensor/ops/strategy.h>

#include <optional>
#include <vector>

namespace dtensor {

/// Restrictions on the decision besides the rule.
struct Constraints {
  /// Flattened input that is written in place, -1 if none. The input keeps its
  /// layout, and the first output has the same layout.
  int written_input = -1;
};

/// Feasibility of a strategy on a mesh dimension.
enum class Feasibility : uint8_t {
  kPossible,
  kLastResort,       // newly shards a dimension with fewer elements than ranks:
                     // taken only if nothing else is possible
  kUnreachable,      // an input would change from one reduction to another
  kChangesWritten,   // the tensor written in place would get another layout
  kMixesReductions,  // a layout would have two reductions
  kShardsReplicated, // all inputs are replicated on this mesh dimension, and
                     // one would not stay so
};

/// A strategy of one mesh dimension with its cost.
struct ScoredStrategy {
  Strategy strategy;
  Feasibility feasibility = Feasibility::kPossible;
  /// Modelled time of the call if the other mesh dimensions keep their chosen
  /// strategies. The choice compares these times. Infinite if impossible.
  double microseconds = 0;
  int changes = 0;     // inputs that get another placement
  int not_sharded = 0; // results that are not sharded
  /// True if the strategy is feasible.
  bool may_be_taken() const {
    return feasibility <= Feasibility::kLastResort;
  }
};

/// Options of one mesh dimension, in the order of candidates(), and the choice.
struct Choice {
  std::vector<ScoredStrategy> options;
  std::optional<size_t> taken; // nullopt if no option is feasible
  int64_t mesh_dim = 0;
};

/// Decides a call. `call.outputs` holds the global shapes of the results. If
/// `choices` is not null, it receives the Choice of each mesh dimension, or
/// only that of a mesh dimension without a feasible option. `choices` stays
/// empty for a rule that decides for the whole mesh. Throws RuntimeError if an
/// in-place operator would have to change the layout of the tensor it writes.
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

} // namespace dtensor

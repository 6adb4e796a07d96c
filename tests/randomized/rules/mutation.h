// SPDX-License-Identifier: BSD-3-Clause
// Mutations of rules: one placement of one strategy is wrong. The proof must
// detect each mutation.
#pragma once

#include "proof.h"

#include <dtensor/ops/strategy.h>

#include <string>
#include <vector>

namespace dtensor::randomized {

/// A strategy whose result `output` gets a wrong placement: R in place of a
/// shard or a partial result, P(sum) in place of R.
struct Mutation {
  Strategy strategy;
  size_t output;
  friend bool operator==(const Mutation&, const Mutation&) = default;

  /// Returns the strategy with the wrong placement.
  Strategy mutant() const;
  /// Returns "S(0) R -> S(0), result 0 as R".
  std::string text() const;
};

/// Returns one mutation per strategy that the trials try, and result. Leaves
/// out results that are zero or empty, and operators that return a written
/// operand: their results do not depend on the placement.
std::vector<Mutation> mutations_of(
    const std::vector<Trial>& trials,
    const ProofSettings& settings);

/// Replaces the rule of operator `op` by one with the wrong placement.
void apply_mutation(const std::string& op, const Mutation& mutation);

} // namespace dtensor::randomized

// SPDX-License-Identifier: BSD-3-Clause
// Mutation check of the proof: rules in which one placement of one strategy is
// wrong.
#pragma once

#include "proof.h"

#include <dtensor/ops/strategy.h>

#include <string>
#include <vector>

namespace dtensor::randomized {

/// A strategy whose result `output` gets a wrong placement: R in place of a
/// shard or a partial result, P(sum) in place of R.
struct Break {
  Strategy strategy;
  size_t output;
  friend bool operator==(const Break&, const Break&) = default;

  Strategy broken() const;
  /// Returns "S(0) R -> S(0), result 0 as R".
  std::string text() const;
};

/// Returns one Break per strategy that the trials try, and result. Leaves out
/// results that are zero or empty, and operators that return a written operand:
/// their results do not depend on the placement.
std::vector<Break> breaks_of(
    const std::vector<Trial>& trials,
    const ProofSettings& settings);

/// Replaces the rule of operator `op` by one with the broken strategy.
void break_rule(const std::string& op, const Break& change);

} // namespace dtensor::randomized

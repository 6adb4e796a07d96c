// SPDX-License-Identifier: BSD-3-Clause
// Proof of one operator's rule by brute force, on its samples and drawn calls.
#pragma once

#include "tests/randomized/harness/verdict.h"
#include "tests/randomized/op_samples/trial.h"

#include <dtensor/ops/strategy.h>

#include <map>
#include <string>
#include <vector>

namespace dtensor::randomized {

struct ProofSettings {
  size_t calls = 4;          // calls per operator from each source
  size_t combinations = 150; // placements of the operands per call
  Placements only_layout;    // of the operands; empty: all
  bool verbose = false;
};

/// Returns calls of the operator that distinguish right layouts from wrong
/// ones: samples, evenly chosen, and drawn calls.
std::vector<Trial> telling_trials(
    const std::string& op,
    const std::vector<Call>& samples,
    const ProofSettings& settings);

/// Tries every combination of placements of the operands on 2 ranks that the
/// rule keeps: runs the call on DTensors, with gradients, and compares with the
/// plain operator.
Tally try_kept(const std::vector<Trial>& trials, const ProofSettings& settings);

/// Returns the strategies of the rule with which try_kept() runs the call.
Strategies tried_strategies(const Trial& trial, const ProofSettings& settings);

/// Combinations of placements that a rule does not keep.
struct Unlisted {
  int64_t tried = 0;
  /// Combinations that the rule could keep, such as "S(0)/2 R/1 -> S(0)": the
  /// plain operator on shards gives shards of the result in every call. The
  /// numbers behind the slashes are numbers of dimensions of the operands.
  std::map<std::string, int64_t> works;
};

/// Runs the plain operator on shards, for each combination that the rule does
/// not keep.
Unlisted try_unlisted(
    const std::vector<Trial>& trials,
    const ProofSettings& settings);

} // namespace dtensor::randomized

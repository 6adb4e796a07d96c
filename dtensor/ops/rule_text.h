// SPDX-License-Identifier: BSD-3-Clause
// Rules as text, to read and compare. The rule of mm on f32[4, 8] and f32[8,
// 6]:
//
//   S(0) R -> S(0)
//   S(1) S(0) -> P(sum)
//   R S(1) -> S(1)
//   P R -> P of sum
//   R P -> P of sum
//
// Each line is a strategy of one mesh dimension: placements of the inputs, then
// of the results. tests/golden/rules.txt lists the strategies of all operators.
#pragma once

#include <dtensor/ops/strategy.h>

#include <string>
#include <vector>

namespace dtensor {

/// Returns a strategy as text: "S(1) S(0) -> P(sum)".
DTENSOR_API std::string to_string(const Strategy& strategy);

/// Returns all strategies of the first mesh dimension for this call, collected
/// over all input layouts that affect the strategies. `call.outputs` holds the
/// shapes of the results. Empty for a rule with a kernel, which has no
/// strategies.
DTENSOR_API Strategies all_strategies(const OpCall& call, const OpRule& rule);

/// Returns one line per strategy, as above. Strategies that differ only in a
/// reduction share a line.
DTENSOR_API std::vector<std::string> texts_of(const Strategies& strategies);

/// Returns the other properties of a rule: "product", "own shapes", "region".
DTENSOR_API std::vector<std::string> notes_of(const OpRule& rule);
/// Returns the properties that `traits` state.
DTENSOR_API std::vector<std::string> notes_of(const OpTraits& traits);

} // namespace dtensor

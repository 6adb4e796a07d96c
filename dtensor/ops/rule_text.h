// SPDX-License-Identifier: BSD-3-Clause
// Rules as text, to be read and compared. Of mm on f32[4, 8] and f32[8, 6]:
//
//   S(0) R -> S(0)
//   S(1) S(0) -> P(sum)
//   R S(1) -> S(1)
//   P R -> P of sum
//   R P -> P of sum
//
// Each line is what one mesh dimension may do: placements of the inputs, then
// of the results. tests/golden/rules.txt has those of all operators.
#pragma once

#include <dtensor/ops/strategy.h>

#include <string>
#include <vector>

namespace dtensor {

/// "S(1) S(0) -> P(sum)".
DTENSOR_API std::string to_string(const Strategy& strategy);

/// What the first mesh dimension may do with this call, whose inputs are taken
/// in all layouts that a rule might look at. `call.outputs` holds the shapes of
/// the results. Nothing for a rule that is a kernel.
DTENSOR_API Strategies all_strategies(const OpCall& call, const OpRule& rule);

/// A line for each, as above: those that differ in a reduction alone share one.
DTENSOR_API std::vector<std::string> texts_of(const Strategies& strategies);

/// What else a rule says: "product", "own shapes", "region".
DTENSOR_API std::vector<std::string> notes_of(const OpRule& rule);
/// Traits alone.
DTENSOR_API std::vector<std::string> notes_of(const OpTraits& traits);

} // namespace dtensor

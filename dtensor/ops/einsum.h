// SPDX-License-Identifier: BSD-3-Clause
// Strategies of an einsum equation. The letters of an equation are the
// dimensions of inputs and output.
//
//   einsum_strategies("mk,kn->mn")
//   // m: S(0) R -> S(0)    k: S(1) S(0) -> P(sum)    n: R S(1) -> S(1)
//   // linear: P(sum) R -> P(sum), R P(sum) -> P(sum)
#pragma once

#include <dtensor/ops/strategy.h>

#include <string>
#include <string_view>
#include <vector>

namespace dtensor {

/// A parsed equation: {"mk", "kn"} and "mn". A dimension of size 1 that
/// broadcasts is written '1' and is never sharded.
struct DTENSOR_API Einsum {
  std::vector<std::string> inputs;
  std::string output;

  /// Parses an equation such as "mk,kn->mn". Throws ValueError for a text
  /// without "->", a character other than a letter or 1, a letter that occurs
  /// twice in a tensor, and a letter that only the output has.
  static Einsum parse(std::string_view equation);
};

/// Returns one strategy per letter, then one per input that may be Partial(sum)
/// while the others are replicated. (An einsum is linear in each input.) The
/// overload for a text throws the errors of Einsum::parse.
DTENSOR_API Strategies einsum_strategies(const Einsum& equation);
DTENSOR_API Strategies einsum_strategies(std::string_view equation);

} // namespace dtensor

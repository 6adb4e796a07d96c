// SPDX-License-Identifier: BSD-3-Clause
// One case of the property: an operator on tensors in given layouts computes
// the values and gradients of the plain operator on full tensors, or throws a
// clear error.
#pragma once

#include <dtensor/layout/text.h>

#include <string>
#include <vector>

#include "arguments.h"

namespace dtensor::property {

struct Case {
  std::string op;                 // "add.Tensor", or its in-place variant
  std::vector<std::string> specs; // one per tensor, as layout/text prints
  uint64_t variant = 0;           // seed of the other arguments and the values

  /// Returns "add.Tensor | f64[4, 2] on (2): S(0) | f64[2] on (2): R | 17".
  std::string text() const;
  /// Parses the result of text().
  static Case parse(const std::string& text);
};

/// Draws a case for the operator `op` on a mesh of that shape. Tensors are
/// small, or have heads that units of 64 and 192 keep unsharded.
Case draw_case(
    const std::string& op,
    const std::vector<int64_t>& mesh_shape,
    bool has_heads,
    Random& random);

enum class Outcome : uint8_t {
  kRight,
  kRefused,   // a clear error
  kMalformed, // the plain operator refuses these arguments too
  kWrong,
};

struct Verdict {
  Outcome outcome = Outcome::kRight;
  std::string why;
};

Verdict try_case(const Case& c);

} // namespace dtensor::property

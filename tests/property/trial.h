// SPDX-License-Identifier: BSD-3-Clause
// One case of the property: an operator on tensors in given layouts computes
// the values and the gradients of the plain operator on the whole tensors, or
// says clearly why it does not.
#pragma once

#include <dtensor/layout/text.h>

#include <string>
#include <vector>

#include "arguments.h"

namespace dtensor::property {

struct Case {
  std::string op;                 // "add.Tensor", in-place ones included
  std::vector<std::string> specs; // one for each tensor, as layout/text prints
  uint64_t variant = 0;           // draws the other arguments and the values

  /// "add.Tensor | f64[4, 2] on (2): S(0) | f64[2] on (2): R | 17".
  std::string text() const;
  /// Reads what text() wrote.
  static Case parse(const std::string& text);
};

/// A case for the operator `op` on a mesh of that shape, of small tensors or of
/// heads, which units of 64 and 192 keep whole.
Case draw_case(
    const std::string& op,
    const std::vector<int64_t>& mesh_shape,
    bool has_heads,
    Random& random);

enum class Outcome : uint8_t {
  kRight,
  kRefused,   // a clear error
  kMalformed, // the plain operator refuses these arguments as well
  kWrong,
};

struct Verdict {
  Outcome outcome = Outcome::kRight;
  std::string why;
};

Verdict try_case(const Case& c);

} // namespace dtensor::property

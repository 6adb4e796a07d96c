// SPDX-License-Identifier: BSD-3-Clause
// Twins of a call: the same with another number in it. What was decided for
// one must not be what the other gets, where the number matters.
#pragma once

#include "call.h"

namespace dtensor::nets {

/// Each with one number changed: 1 in place of 0, the opposite and 0 in place
/// of others; among complex operands 1+1i and 0i. Most calls have none. The
/// plain operator may throw where that of `call` does not.
std::vector<Call> twins_of(const Call& call);

bool is_complex(const Call& call);

} // namespace dtensor::nets

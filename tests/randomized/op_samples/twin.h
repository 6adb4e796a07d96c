// SPDX-License-Identifier: BSD-3-Clause
// Twins of a call: the same call with another number. They detect whether a
// decision cached for one number is wrongly used for another.
#pragma once

#include "call.h"

namespace dtensor::randomized {

/// Returns calls with one number changed: 1 instead of 0, the negative and 0
/// instead of other numbers; with complex operands 1+1i and 0i. Most calls have
/// no twins. The plain operator may throw for a twin although it does not throw
/// for `call`.
std::vector<Call> twins_of(const Call& call);

bool is_complex(const Call& call);

} // namespace dtensor::randomized

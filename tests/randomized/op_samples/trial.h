// SPDX-License-Identifier: BSD-3-Clause
// Calls to try: a call with its expected results, and its twins, which run
// beside it.
#pragma once

#include "truth.h"

namespace dtensor::randomized {

// A call and its expected results.
struct Trial {
  Call call;
  Truth truth;
  Compared compared = Compared::kAll;
  bool skip = false;
  std::vector<Trial> twins; // on the same operands
};

/// Returns the trial of a call, without twins.
Trial trial_alone(Call call);

/// Returns the trial of a call. It includes the twins with equal operands
/// (including `out`) for which the plain operator succeeds or fails as for the
/// call.
Trial trial_of(Call call);

/// Returns the order of calls: the call twice (cold and warm), its twins, and
/// the first call again. This order detects decisions cached for one call and
/// wrongly used for another. Backwards, the twins come first.
std::vector<const Trial*> order_of(const Trial& trial, bool backwards);

} // namespace dtensor::randomized

// SPDX-License-Identifier: BSD-3-Clause
// What a worker tries: a call with its truth, and its twins, which run beside
// it.
#pragma once

#include "truth.h"

namespace dtensor::nets {

// A call with what it takes to try it on a mesh.
struct Trial {
  Call call;
  Truth truth;
  Compared compared = Compared::kAll;
  bool skip = false;
  std::vector<Trial> twins; // on the same operands
};

/// With those twins that are on the same operands, `out` included, and that
/// the plain operator takes as it takes the call.
Trial trial_of(Call call);

/// A call cold and warm, its twins, and what came first once more: what was
/// decided for one must not be taken for another. Backwards the twins come
/// first.
std::vector<const Trial*> order_of(const Trial& trial, bool backwards);

} // namespace dtensor::nets

// SPDX-License-Identifier: BSD-3-Clause
// For tests that pin what LibTorch does since a version, as the first formula
// for the gradient of an operator.
#pragma once

#include <torch/version.h>

namespace dtensor::testing {

/// Whether this is LibTorch 2.<minor> or newer.
constexpr bool torch_since(int minor) {
  return TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= minor;
}

/// These have a gradient since then.
constexpr bool kAminmaxHasGradient = torch_since(12);
constexpr bool kNextafterHasGradient = torch_since(13);

} // namespace dtensor::testing

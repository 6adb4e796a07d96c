// SPDX-License-Identifier: BSD-3-Clause
// Version checks for tests of LibTorch behavior that depends on its version,
// such as the first version with a gradient formula for an operator.
#pragma once

#include <torch/version.h>

namespace dtensor::testing {

/// True for LibTorch 2.<minor> or newer.
constexpr bool torch_since(int minor) {
  return TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= minor;
}

/// True if LibTorch has a gradient formula for aminmax.
constexpr bool kAminmaxHasGradient = torch_since(12);
constexpr bool kNextafterHasGradient = torch_since(13);
/// True if LibTorch's gradient of a trace has ones on the main diagonal alone.
/// Before 2.12, that of a matrix with more rows than columns has more.
constexpr bool kTraceHasGradientOfTallMatrices = torch_since(12);
constexpr bool kHasUpsampleLanczos = torch_since(12);
/// True if reflection_pad3d refuses an empty padding, which it reads before.
constexpr bool kReflectionPad3dChecksPadding = torch_since(13);
/// True if LibTorch has aten::cholesky, which linalg_cholesky replaces.
constexpr bool kHasCholesky = !torch_since(14);

} // namespace dtensor::testing

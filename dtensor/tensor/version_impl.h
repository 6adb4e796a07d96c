// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace dtensor::detail {

/// Returns the version counter of `t`, or 0 for an inference tensor, which has
/// no counter.
inline uint32_t version_of(const at::Tensor& t) {
  return t.is_inference() ? 0 : static_cast<uint32_t>(t._version());
}

} // namespace dtensor::detail

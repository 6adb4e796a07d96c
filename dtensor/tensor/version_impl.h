// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace dtensor::detail {

/// What the counter of writes says; 0 of a tensor of inference mode, which has
/// none.
inline uint32_t version_of(const at::Tensor& t) {
  return t.is_inference() ? 0 : static_cast<uint32_t>(t._version());
}

} // namespace dtensor::detail

// SPDX-License-Identifier: BSD-3-Clause
// Greatest values of dtypes, and dtypes of sums.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <limits>

namespace dtensor::detail {

/// Returns the greatest value of an integer dtype; 1 for bool.
inline int64_t greatest_integer(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBool:
      return 1;
    case at::kByte:
      return std::numeric_limits<uint8_t>::max();
    case at::kChar:
      return std::numeric_limits<int8_t>::max();
    case at::kShort:
      return std::numeric_limits<int16_t>::max();
    case at::kInt:
      return std::numeric_limits<int32_t>::max();
    default:
      return std::numeric_limits<int64_t>::max();
  }
}

/// Returns the dtype in which shards and sums of this dtype are combined: float
/// for 16-bit dtypes, whose sums may overflow.
inline at::ScalarType accumulation_dtype(at::ScalarType dtype) {
  return dtype == at::kHalf || dtype == at::kBFloat16 ? at::kFloat : dtype;
}

} // namespace dtensor::detail

// SPDX-License-Identifier: BSD-3-Clause
// ReduceOp: the operation that reduces the values of several ranks to one.
#pragma once

#include <dtensor/api.h>

#include <cstdint>
#include <string_view>

namespace dtensor {

/// The operation that reduces the local values of a Partial tensor.
enum class ReduceOp : uint8_t {
  kSum,
  kAvg,
  kMin,
  kMax,
  kProduct,
  kBand,
  kBor,
  kBxor,
};

/// Returns the name used in text and in Partial("sum"): sum, avg, min, max,
/// product, band, bor, bxor.
DTENSOR_API std::string_view to_string(ReduceOp op);

/// Returns the reduce op called `name`. Throws ValueError listing the known
/// names.
DTENSOR_API ReduceOp parse_reduce_op(std::string_view name);

} // namespace dtensor

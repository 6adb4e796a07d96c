// SPDX-License-Identifier: BSD-3-Clause
// ReduceOp: how one value comes of those of several ranks.
#pragma once

#include <dtensor/api.h>

#include <cstdint>
#include <string_view>

namespace dtensor {

/// How the values of a Partial tensor combine into the whole one.
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

/// The name used in text and in Partial("sum"): sum, avg, min, max, product,
/// band, bor, bxor.
DTENSOR_API std::string_view to_string(ReduceOp op);

/// The reduce op of that name. Throws ValueError naming the known ones.
DTENSOR_API ReduceOp parse_reduce_op(std::string_view name);

} // namespace dtensor

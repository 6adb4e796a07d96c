// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/layout/placement.h>

#include <dtensor/error.h>

#include <array>

namespace dtensor {
namespace {

constexpr std::array<std::string_view, 8> kReduceOpNames =
    {"sum", "avg", "min", "max", "product", "band", "bor", "bxor"};

} // namespace

std::string_view to_string(ReduceOp op) {
  return kReduceOpNames.at(static_cast<size_t>(op));
}

ReduceOp parse_reduce_op(std::string_view name) {
  for (size_t i = 0; i < kReduceOpNames.size(); ++i) {
    if (kReduceOpNames[i] == name) {
      return static_cast<ReduceOp>(i);
    }
  }
  DTENSOR_THROW_VALUE(
      "[Partial] no such reduce op: \"{}\". Use one of sum, avg, min, max, "
      "product, band, bor, bxor.",
      name);
}

Placement Shard(int64_t dim, int64_t unit) {
  DTENSOR_CHECK_VALUE(
      unit >= 1,
      "[Shard] the unit must be positive: {}. Use Shard({}) to allow shard "
      "boundaries between any two elements.",
      unit,
      dim);
  return {Placement::Kind::kShard, ReduceOp::kSum, dim, 1, unit};
}

Placement StridedShard(int64_t dim, int64_t split_factor, int64_t unit) {
  DTENSOR_CHECK_VALUE(
      split_factor >= 1,
      "[StridedShard] the split factor must be positive: {}. Use Shard({}) for "
      "plain sharding.",
      split_factor,
      dim);
  DTENSOR_CHECK_VALUE(
      unit >= 1,
      "[StridedShard] the unit must be positive: {}. Leave it out to allow "
      "shard boundaries between any two elements.",
      unit);
  return {
      Placement::Kind::kStridedShard, ReduceOp::kSum, dim, split_factor, unit};
}

Placement Partial(std::string_view reduce_op) {
  return Partial(parse_reduce_op(reduce_op));
}

} // namespace dtensor

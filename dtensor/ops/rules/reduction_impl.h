// SPDX-License-Identifier: BSD-3-Clause
// Reductions over tensor dimensions: what becomes of the others, and what a
// shard of a reduced dimension gives.
#pragma once

#include <dtensor/ops/strategy.h>

#include <optional>
#include <vector>

namespace dtensor::detail {

/// Which dimensions of the first operand a call reduces, and whether the
/// result keeps them with size 1.
struct Reduced {
  std::vector<int64_t> dims; // sorted
  bool keepdim = false;

  bool contains(int64_t dim) const;
  /// The dimension of the result that `dim`, not reduced, becomes.
  int64_t result_dim(int64_t dim) const;
  /// Shape of the result.
  Sizes result_sizes(SizesRef sizes) const;
};

/// From the arguments "dim" (none: all) and "keepdim" (none: false).
Reduced reduced_of(const OpCall& call);

/// Dimensions that are not reduced may be sharded. If `over_shards` is given,
/// a shard of a reduced dimension gives a partial result of that kind, and
/// partial operands of the kinds in `keeps` give the like result.
DimRule reduction_rule(
    std::optional<ReduceOp> over_shards = std::nullopt,
    std::vector<ReduceOp> keeps = {});

/// Dimension "dim" stays whole, every other may be sharded, in all operands
/// and results: they have the same shape there. `linear` operands may be
/// partial sums while the others are whole.
DimRule along_dim_rule(std::vector<size_t> linear = {});

/// Result shapes of a reduction with the dtype that `dtype(call)` gives, one
/// per tensor result.
using DtypeRule = std::function<std::vector<at::ScalarType>(const OpCall&)>;
MetaRule reduction_meta(DtypeRule dtypes);

} // namespace dtensor::detail

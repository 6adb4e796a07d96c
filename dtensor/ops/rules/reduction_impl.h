// SPDX-License-Identifier: BSD-3-Clause
// Reductions over tensor dimensions: the placement of the other dimensions, and
// the effect of sharding a reduced one.
#pragma once

#include <dtensor/ops/strategy.h>

#include <functional>
#include <optional>
#include <vector>

namespace dtensor::detail {

/// Dimensions of the first operand that a call reduces, and keepdim: true if
/// the result keeps them with size 1.
struct Reduced {
  std::vector<int64_t> dims; // sorted
  bool keepdim = false;

  bool contains(int64_t dim) const;
  /// Returns the dimension of the result that corresponds to `dim`, which is
  /// not reduced.
  int64_t result_dim(int64_t dim) const;
  /// Returns the shape of the result.
  Sizes result_sizes(SizesRef sizes) const;
};

/// Reads the arguments "dim" (absent: all) and "keepdim" (absent: false).
Reduced reduced_of(const OpCall& call);

/// Marks calls that the operator itself can run, because no reduced dimension
/// is sharded. For other calls, passes the layout of the operand to the local
/// kernel.
void note_shared_dims(const OpCall& call, Decision& decision);

/// Returns the rule of a reduction: dimensions that are not reduced may be
/// sharded. If `over_shards` is given, sharding a reduced dimension gives a
/// partial result of that kind, and partial operands of the kinds in `keeps`
/// give the corresponding result.
DimRule reduction_rule(
    std::optional<ReduceOp> over_shards = std::nullopt,
    std::vector<ReduceOp> keeps = {});

/// Returns true if a local kernel combines the results of shards in this call.
using CombineTest = std::function<bool(const OpCall&, int64_t mesh_dim)>;
/// Returns the rule of a reduction whose local kernel combines the results of
/// shards: a reduced dimension may be sharded in calls that pass the test.
DimRule combining_rule(CombineTest combines);

/// Returns the rule of an operator along dimension "dim". This dimension is
/// unsharded, except in calls that pass the test, if any. Every other
/// dimension, whose size is equal in all operands and results, may be sharded
/// in all of them. `linear` operands may be partial sums while the others are
/// replicated.
DimRule along_dim_rule(
    std::vector<size_t> linear = {},
    CombineTest combines = nullptr);

/// Returns the result shapes of a reduction, one per tensor result, with the
/// dtypes of `dtypes(call)`.
using DtypeRule = std::function<std::vector<at::ScalarType>(const OpCall&)>;
MetaRule reduction_meta(DtypeRule dtypes);

/// Returns the dtype of the operand.
std::vector<at::ScalarType> operand_dtype(const OpCall& call);
/// Returns the dtypes of elements and their indices.
std::vector<at::ScalarType> values_and_indices(const OpCall& call);

} // namespace dtensor::detail

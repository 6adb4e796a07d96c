// SPDX-License-Identifier: BSD-3-Clause
// Attention of queries to one block of keys, and the merge of such results.
//
// Block i of n yields for each query row the average out_i of its values and
// lse_i, the log-sum-exp of its scores. The merged result is exp(lse) = sum
// exp(lse_i), and out is the average of the out_i weighted by exp(lse_i). Given
// the merged out and lse, each gradient is a sum over the blocks.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/layout/shard_math.h>

namespace dtensor::detail {

/// (B, H, L, E) queries, (B, K, S, E) keys and (B, K, S, V) values. Each key
/// head serves H / K consecutive query heads.
struct AttentionBlock {
  at::Tensor query;
  at::Tensor key;
  at::Tensor value;
  double scale = 1;
  /// True if query n attends to the first n keys only.
  bool causal = false;
};

/// Attention output (B, H, L, V) in the queries' dtype or a wider dtype, and
/// log-sum-exp (B, H, L) in sum_dtype().
struct AttentionRows {
  at::Tensor out;
  at::Tensor lse;
};

/// Computes attention. Uses LibTorch's flash kernel if it returns lse and
/// supports these tensors (on the CPU). The fallback computes the definition,
/// with memory for L * S weights per head. No size may be 0.
AttentionRows attend(const AttentionBlock& block);

/// The block's contributions to the gradients of query, key and value. `rows`
/// is the merged result over all keys, `grad` the gradient of its `out`.
struct AttentionGradients {
  at::Tensor query;
  at::Tensor key;
  at::Tensor value;
};
AttentionGradients gradients_of(
    const AttentionBlock& block,
    const AttentionRows& rows,
    const at::Tensor& grad);

/// Returns the dtype in which rows and gradients of `dtype` are accumulated.
at::ScalarType sum_dtype(at::ScalarType dtype);

/// Merges rows of several blocks. Queries that attend to no key give 0.
class MergedRows {
 public:
  /// Merges rows of `query`, with values of `features` features.
  MergedRows(const at::Tensor& query, int64_t features);
  /// Adds the rows of `queries` for one more block.
  void add(Interval queries, const AttentionRows& rows);
  /// Returns the merged rows. Their strides have the dimension order of the
  /// query's strides.
  AttentionRows take_rows();

 private:
  void begin();

  at::Tensor query_;
  Sizes sizes_;
  AttentionRows rows_;
};

} // namespace dtensor::detail

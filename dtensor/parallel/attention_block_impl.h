// SPDX-License-Identifier: BSD-3-Clause
// Attention of some queries to some of the keys, which can be put together.
//
// Of n blocks of keys, block i gives a row's average out_i of its values and
// the logarithm lse_i of the sum of its weights. Over all keys the weights sum
// to exp(lse) = sum exp(lse_i), and out is the average of the out_i by these.
// Given the whole out and lse, the gradient is a sum over the blocks.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/layout/shard_math.h>

namespace dtensor::detail {

/// (B, H, L, E) queries, (B, K, S, E) keys and (B, K, S, V) values, of which
/// each serves H / K heads of queries in a row.
struct AttentionBlock {
  at::Tensor query;
  at::Tensor key;
  at::Tensor value;
  double scale = 1;
  /// Whether query n sees the first n keys alone.
  bool causal = false;
};

/// (B, H, L, V) in the queries' dtype or a wider one, and (B, H, L) in that of
/// sums.
struct AttentionRows {
  at::Tensor out;
  at::Tensor lse;
};

/// By LibTorch's flash kernel where it has one that gives lse and takes these
/// tensors (on the CPU), else by its definition, which takes memory for L * S
/// weights a head. No size may be 0.
AttentionRows attend(const AttentionBlock& block);

/// What the block adds to the gradients of query, key and value, `rows` being
/// those of all keys and `grad` the gradient of their out.
struct AttentionGradients {
  at::Tensor query;
  at::Tensor key;
  at::Tensor value;
};
AttentionGradients gradients_of(
    const AttentionBlock& block,
    const AttentionRows& rows,
    const at::Tensor& grad);

/// The dtype in which rows and gradients of `dtype` are added up.
at::ScalarType sum_dtype(at::ScalarType dtype);

/// Puts rows together. Queries that see no key are 0.
class MergedRows {
 public:
  /// For the rows of `query`, with values of so many features.
  MergedRows(const at::Tensor& query, int64_t features);
  /// Adds what `queries` see of one more block.
  void add(Interval queries, const AttentionRows& rows);
  /// The result: contiguous dimensions in the order of the query's.
  AttentionRows take();

 private:
  void begin();

  at::Tensor query_;
  Sizes sizes_;
  AttentionRows rows_;
};

} // namespace dtensor::detail

// SPDX-License-Identifier: BSD-3-Clause
// ColwiseParallel and RowwiseParallel: Linear, Embedding, Conv1d to 3d and
// ConvTranspose1d to 3d with their weight sharded along the output or the input
// features.
//
// A ColwiseParallel followed by a RowwiseParallel takes one all-reduce:
//
//   x (B, T, C) R -> w1: y (B, T, 4C) S(-1) -> gelu -> w2: (B, T, C) P -> R
#pragma once

#include <dtensor/parallel/style.h>

#include <optional>

namespace dtensor {

/// Options for ColwiseParallel.
struct ColwiseOptions {
  /// Layout of a plain input. A DTensor input has its own.
  Placement input_layouts = Replicate();
  /// Layout of the output.
  Placement output_layouts = Shard(-1);
  /// Returns the local tensor of the output instead of a DTensor.
  bool use_local_output = true;
  /// Splits the output features only at multiples of `multiple_of`, which must
  /// divide their number. For example, 64 keeps heads of 64 features whole on
  /// any number of ranks.
  int64_t multiple_of = 1;
  /// For the keys or values of grouped-query attention: total number of query
  /// heads, which share the key/value heads of this module. Equals the queries'
  /// output features divided by the multiple_of of their ColwiseParallel. A
  /// rank gets the key/value heads that its query heads use, even if there are
  /// fewer key/value heads than ranks. 0: heads are sharded without regard to
  /// queries.
  int64_t num_query_heads = 0;
  /// Number of equal blocks of output features to shard separately, so that
  /// each rank has a shard of each block. Use 3 for a fused projection of
  /// queries, keys and values, and 2 for a gated MLP.
  int64_t fused_projections = 1;
};

/// For a Linear, weight (out, in) is S(0), bias S(0), input R, and output S(-1)
/// before it is redistributed to output_layouts. For an Embedding, weight
/// (rows, features) is S(1). With multiple_of u these shards, and the default
/// of output_layouts, have unit u: S(0, u=u). With fused_projections p they are
/// strided: SS(0, sf=p, u=u). apply() throws ValueError if multiple_of or
/// fused_projections does not divide the output features.
///
/// With num_query_heads, the heads that the ranks require may not form a shard.
/// Weight and bias are then R, and the output is a plain tensor: the rank's
/// heads in order, each repeated as scaled_dot_product_attention with
/// enable_gqa requires. For example, three key heads that nine query heads
/// share on two ranks are 0 0 0 1 1 (for five query heads) and 1 2 2 2 (for
/// four). apply() throws ValueError for a num_query_heads that is not a
/// multiple of the key/value heads. num_query_heads together with
/// fused_projections, or with an output layout other than the default, is a
/// ValueError, too. num_query_heads with an Embedding is a NotImplementedError.
/// For a Conv of one group, weight and bias are S(0), input R, output S(1).
/// Python: torch.distributed.tensor.parallel.ColwiseParallel, which has none of
/// multiple_of, num_query_heads and fused_projections.
class DTENSOR_API ColwiseParallel : public ParallelStyle {
 public:
  explicit ColwiseParallel(ColwiseOptions options = {}) : options_(options) {}
  void apply(const StyleTarget& target) const override;

 private:
  ColwiseOptions options_;
};

/// Options for RowwiseParallel.
struct RowwiseOptions {
  /// Layout of a plain input. Default: Shard(-1) for a Linear, Shard(1) for a
  /// Conv, Replicate() for an Embedding (Python: Shard(-1), which shards ids).
  std::optional<Placement> input_layouts = std::nullopt;
  /// Layout of the output.
  Placement output_layouts = Replicate();
  /// Returns the local tensor of the output instead of a DTensor.
  bool use_local_output = true;
  /// Linear only: splits the product into chunks of rows, so that one chunk is
  /// reduced while the next is multiplied. The forward pass then takes this
  /// many collectives; the backward pass is unchanged. Has no effect if the
  /// output is sharded along dimension 0. docs/performance.md describes when it
  /// pays.
  int64_t overlap_chunks = 1;
  /// Splits the input features (Embedding: rows) only at multiples of
  /// `multiple_of`, which must divide their number. Use the value of the
  /// preceding ColwiseParallel.
  int64_t multiple_of = 1;
};

/// For a Linear, weight (out, in) is S(1), bias R (added once), input S(-1),
/// and output P before it is redistributed to output_layouts. For an Embedding,
/// weight (rows, features) is S(0) and input R. With multiple_of u these
/// shards, and the default of input_layouts, have unit u: S(1, u=u). apply()
/// throws ValueError for overlap_chunks below 1, for overlap_chunks above 1
/// with an Embedding, and for a multiple_of that does not divide the sharded
/// dimension. A Conv differs from a Linear in its input, S(1).
/// Python: torch.distributed.tensor.parallel.RowwiseParallel, which has neither
/// overlap_chunks nor multiple_of.
class DTENSOR_API RowwiseParallel : public ParallelStyle {
 public:
  explicit RowwiseParallel(RowwiseOptions options = {}) : options_(options) {}
  void apply(const StyleTarget& target) const override;

 private:
  RowwiseOptions options_;
};

} // namespace dtensor

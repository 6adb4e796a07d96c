// SPDX-License-Identifier: BSD-3-Clause
// ColwiseParallel and RowwiseParallel: torch::nn::Linear and Embedding with
// their weight cut along the output or the input features.
//
// A pair of them, columns then rows, costs one all-reduce:
//
//   x (B, T, C) R -> w1: y (B, T, 4C) S(-1) -> gelu -> w2: (B, T, C) P -> R
#pragma once

#include <dtensor/parallel/style.h>

#include <optional>

namespace dtensor {

/// Options of ColwiseParallel.
struct ColwiseOptions {
  /// Layout of a plain input (a DTensor input knows its own).
  Placement input_layouts = Replicate();
  /// Layout of the output.
  Placement output_layouts = Shard(-1);
  /// Return the local part of the output instead of a DTensor.
  bool use_local_output = true;
  /// Cut the output features at multiples of so many, which divides their
  /// number: 64 leaves heads of 64 features whole on any number of ranks.
  int64_t unit = 1;
  /// Of the keys and values of grouped queries: in how many units another
  /// ColwiseParallel cuts the queries. A rank gets the units (key heads) that
  /// its queries use, also where there are fewer of them than ranks. 0: they
  /// are nobody's but the rank's own.
  int64_t shared_by = 0;
  /// The output features are so many blocks of one size, one after the other,
  /// each of which is cut: 3 for queries, keys and values of one Linear, 2 for
  /// two products that are multiplied. A rank has its part of each.
  int64_t pieces = 1;
};

/// Linear: weight (out, in) S(0), bias S(0), input R, output S(-1) before it
/// is brought to output_layouts. Embedding: weight (rows, features) S(1). With
/// a unit u they are S(0, u=u), S(-1, u=u) and S(1, u=u), the default of
/// output_layouts too; with pieces p they are SS(0, sf=p, u=u) and so on.
/// apply() throws ValueError for a unit or pieces that do not divide the output
/// features.
///
/// With shared_by, where the ranks' parts are not those of such a cut, the
/// weight and the bias are R, and the output of a rank is a plain tensor: its
/// units in order, each as often as scaled_dot_product_attention with
/// enable_gqa needs it. Three key heads that nine query heads share on two
/// ranks are 0 0 0 1 1 for five of these, and 1 2 2 2 for four. apply() throws
/// ValueError for a shared_by that is no multiple of the units, or beside
/// pieces or another output layout than the default, NotImplementedError for it
/// with an Embedding.
///
/// Python: torch.distributed.tensor.parallel.ColwiseParallel, without units.
class DTENSOR_API ColwiseParallel : public ParallelStyle {
 public:
  explicit ColwiseParallel(ColwiseOptions options = {}) : options_(options) {}
  void apply(const StyleTarget& target) const override;

 private:
  ColwiseOptions options_;
};

/// Options of RowwiseParallel.
struct RowwiseOptions {
  /// Layout of a plain input; default: Shard(-1) for a Linear, Replicate() for
  /// an Embedding (Python: Shard(-1), which cuts the ids).
  std::optional<Placement> input_layouts = std::nullopt;
  /// Layout of the output.
  Placement output_layouts = Replicate();
  /// Return the local part of the output instead of a DTensor.
  bool use_local_output = true;
  /// Of a Linear: multiply and reduce in so many chunks of rows, so that a
  /// chunk is reduced while the next is multiplied. It takes as many
  /// collectives forward, and the same backward. Does nothing where the output
  /// is sharded along dim 0. docs/performance.md says when it pays.
  int64_t overlap_chunks = 1;
  /// Cut the input features (of an Embedding, the rows) at multiples of so
  /// many, which divides their number: the unit of the ColwiseParallel before.
  int64_t unit = 1;
};

/// Linear: weight (out, in) S(1), bias R (added once), input S(-1), output P
/// before it is brought to output_layouts. Embedding: weight (rows, features)
/// S(0), input R. With a unit u they are S(1, u=u), S(-1, u=u) and S(0, u=u),
/// the default of input_layouts too. apply() throws ValueError for
/// overlap_chunks below 1, or above 1 of an Embedding, and for a unit that does
/// not divide what it cuts.
/// Python: torch.distributed.tensor.parallel.RowwiseParallel, without units.
class DTENSOR_API RowwiseParallel : public ParallelStyle {
 public:
  explicit RowwiseParallel(RowwiseOptions options = {}) : options_(options) {}
  void apply(const StyleTarget& target) const override;

 private:
  RowwiseOptions options_;
};

} // namespace dtensor

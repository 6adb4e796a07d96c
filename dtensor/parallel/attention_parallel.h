// SPDX-License-Identifier: BSD-3-Clause
// AttentionParallel: torch::nn::MultiheadAttention with its heads sharded over
// the ranks.
//
//   parallelize_module(*encoder, mesh, {
//       {"layers.*.self_attn", AttentionParallel()},
//       {"layers.*.linear1", ColwiseParallel({.use_local_output = false})},
//       {"layers.*.linear2", RowwiseParallel()},
//   });
#pragma once

#include <dtensor/parallel/style.h>

namespace dtensor {

/// Options for AttentionParallel.
struct AttentionOptions {
  /// Layout of the output.
  Placement output_layouts = Replicate();
  /// Returns the local tensor of the output instead of a DTensor.
  bool use_local_output = true;
};

/// Style for torch::nn::MultiheadAttention. Each head, of D features, is on one
/// rank. If the number of heads is not divisible by the number of ranks, the
/// last ranks have fewer heads, or none. In the fused weight (3E, E), queries,
/// keys and values are each sharded by heads: SS(0, sf=3, u=D). Separate
/// weights are S(0, u=D), bias_k and bias_v are S(2, u=D), and out_proj is
/// sharded as by RowwiseParallel. The forward pass takes one all-reduce, the
/// backward pass one for each distinct tensor among query, key and value.
/// Attention weights, if requested, are a DTensor in P(sum) if averaged over
/// the heads, else in S(1).
///
/// Plain queries, keys and values must be full tensors, since the module reads
/// their sizes; sharded ones must be DTensors. Masks, and the zeros that
/// add_zero_attn appends, are plain tensors that the module combines with
/// DTensors: call it in an implicit_replication() scope. Throws
/// NotImplementedError for any other module. Python has no such style; PyTorch
/// 2.0 replaced the module with TensorParallelMultiheadAttention.
class DTENSOR_API AttentionParallel : public ParallelStyle {
 public:
  explicit AttentionParallel(AttentionOptions options = {})
      : options_(options) {}
  void apply(const StyleTarget& target) const override;

 private:
  AttentionOptions options_;
};

} // namespace dtensor

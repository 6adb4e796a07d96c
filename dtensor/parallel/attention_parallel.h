// SPDX-License-Identifier: BSD-3-Clause
// AttentionParallel: torch::nn::MultiheadAttention with its heads spread over
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

/// Options of AttentionParallel.
struct AttentionOptions {
  /// Layout of the output.
  Placement output_layouts = Replicate();
  /// Return the local part of the output instead of a DTensor.
  bool use_local_output = true;
};

/// torch::nn::MultiheadAttention: every rank has whole heads, of D features,
/// and where they do not divide by the ranks the last ones have fewer, or none.
/// The fused weight of q, k and v (3E, E) is cut in each of the three, SS(0,
/// sf=3, u=D), separate ones S(0, u=D), bias_k and bias_v S(2, u=D), out_proj
/// as by RowwiseParallel: one all-reduce forward, and one backward for each of
/// query, key and value that is another tensor. Attention weights, where they
/// are asked for, come as a DTensor, P(sum) if averaged over the heads and else
/// S(1).
///
/// Plain queries, keys and values are whole, since the module reads their
/// sizes; those that are cut have to be DTensors. Masks are plain tensors
/// beside DTensors in the module, and so are the zeros of add_zero_attn: wrap
/// the call in implicit_replication() for them. Throws NotImplementedError for
/// another module. Python has no such style; TensorParallelMultiheadAttention
/// of PyTorch 2.0 stood in for the module.
class DTENSOR_API AttentionParallel : public ParallelStyle {
 public:
  explicit AttentionParallel(AttentionOptions options = {})
      : options_(options) {}
  void apply(const StyleTarget& target) const override;

 private:
  AttentionOptions options_;
};

} // namespace dtensor

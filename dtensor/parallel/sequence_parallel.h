// SPDX-License-Identifier: BSD-3-Clause
// SequenceParallel: norms and dropout on activations that are sharded along the
// sequence.
#pragma once

#include <dtensor/parallel/style.h>

namespace dtensor {

/// Options for SequenceParallel.
struct SequenceParallelOptions {
  /// Sharded dimension of input and output.
  int64_t sequence_dim = 1;
  /// Returns the local tensor of the output instead of a DTensor.
  bool use_local_output = false;
  /// Accepts a custom module without hooks that passes its `weight` and its
  /// input to one call of torch::rms_norm or torch::layer_norm. The style
  /// intercepts this call. (Not in Python.)
  bool fused_norm = false;
};

/// Style for norms and dropout. Parameters are R; input and output (B, T, C)
/// are S(sequence_dim). A plain input is the local shard. Parameter gradients
/// are summed over the ranks once per backward pass. Supports
/// torch::nn::LayerNorm with a weight, any module declared with DTENSOR_MODULE
/// (dtensor::hooked::Dropout), and, with fused_norm, a custom module.
/// Throws NotImplementedError for any other module. Forward of a module with
/// hooks throws TypeError if an output is a plain tensor.
/// Python: torch.distributed.tensor.parallel.SequenceParallel.
class DTENSOR_API SequenceParallel : public ParallelStyle {
 public:
  explicit SequenceParallel(SequenceParallelOptions options = {})
      : options_(options) {}
  void apply(const StyleTarget& target) const override;

 private:
  SequenceParallelOptions options_;
};

} // namespace dtensor

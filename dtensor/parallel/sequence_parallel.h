// SPDX-License-Identifier: BSD-3-Clause
// SequenceParallel: norms and dropout on activations cut along the sequence.
#pragma once

#include <dtensor/parallel/style.h>

namespace dtensor {

/// Options of SequenceParallel.
struct SequenceParallelOptions {
  /// The dimension that is cut.
  int64_t sequence_dim = 1;
  /// Return the local part of the output instead of a DTensor.
  bool use_local_output = false;
  /// Of a module of the program without hooks: its `weight` goes into
  /// torch::rms_norm or torch::layer_norm together with its input, where the
  /// style finds both. (Ours.)
  bool fused_norm = false;
};

/// Parameters replicated, input and output (B, T, C) S(sequence_dim); a plain
/// input is taken to be this rank's part. Parameter gradients are summed over
/// the ranks once per backward pass. For torch::nn::LayerNorm with a weight,
/// any module declared with DTENSOR_MODULE (dtensor::hooked::Dropout), and,
/// with fused_norm, a module of your own.
/// Throws NotImplementedError for any other module.
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

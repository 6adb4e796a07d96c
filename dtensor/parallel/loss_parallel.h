// SPDX-License-Identifier: BSD-3-Clause
// loss_parallel: cross entropy of logits that are sharded over classes, without
// gathering them.
//
//   const auto parallel = loss_parallel();
//   auto loss = cross_entropy(logits, target);   // logits S(1) on "tp"
//   loss.backward();                             // inside or outside
#pragma once

#include <dtensor/api.h>

namespace dtensor {

/// Scope in which cross_entropy on this rank keeps the class dimension sharded
/// over one mesh dimension (others may shard the batch). Takes three
/// all-reduces of one float32 per sample forward, none backward. Weights,
/// ignore_index, label smoothing and reductions work as in the plain operator.
/// Half and bfloat16 logits are computed in float32. On the mesh dimension that
/// shards the classes the result is replicated; a sum over a sharded batch is
/// Partial. The target is a DTensor in any layout, or a plain tensor that is
/// complete on every rank; so are weights. Targets may be class probabilities
/// in the shape of the logits: then a few numbers per sample are communicated,
/// no logits. Scopes nest. With class indices, cross_entropy throws ValueError
/// for classes that two mesh dimensions shard, and for a plain target beside a
/// sharded batch.
/// Python: torch.distributed.tensor.parallel.loss_parallel.
class DTENSOR_API LossParallel {
 public:
  LossParallel();
  ~LossParallel();
  LossParallel(const LossParallel&) = delete;
  LossParallel& operator=(const LossParallel&) = delete;
};

/// Opens the scope, with the spelling of Python's context manager.
[[nodiscard]] inline LossParallel loss_parallel() {
  return LossParallel();
}

} // namespace dtensor

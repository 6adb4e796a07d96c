// SPDX-License-Identifier: BSD-3-Clause
// loss_parallel: cross entropy on logits whose classes are sharded, without
// gathering them.
//
//   const auto parallel = loss_parallel();
//   auto loss = cross_entropy(logits, target);   // logits S(1) on "tp"
//   loss.backward();                             // inside or outside
#pragma once

#include <dtensor/api.h>

namespace dtensor {

/// While it lives, cross_entropy on this rank keeps a class dimension that one
/// mesh dimension shards (other mesh dimensions may shard the batch): three
/// all-reduces of a float32 per sample forward, none backward. Weights,
/// ignore_index, label smoothing and all reductions are those of the plain
/// operator; half and bfloat16 logits are computed in float32. The result is
/// replicated where the classes were sharded; a sum over a sharded batch is
/// Partial. The target is a DTensor in any layout, or a plain tensor that every
/// rank has whole; so are weights. Class probabilities, in the shape of the
/// logits, are targets as well: they communicate numbers per sample, and no
/// logits. Nests, and ends with its scope however
/// that is left. With class indices cross_entropy throws ValueError for classes
/// that two mesh dimensions shard, and for a plain target beside a sharded
/// batch. Python: torch.distributed.tensor.parallel.loss_parallel.
class DTENSOR_API LossParallel {
 public:
  LossParallel();
  ~LossParallel();
  LossParallel(const LossParallel&) = delete;
  LossParallel& operator=(const LossParallel&) = delete;
};

/// As Python's context manager is called.
[[nodiscard]] inline LossParallel loss_parallel() {
  return LossParallel();
}

} // namespace dtensor

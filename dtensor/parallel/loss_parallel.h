// SPDX-License-Identifier: BSD-3-Clause
// loss_parallel: cross entropy of logits that are sharded over classes, without
// gathering them.
//
//   const auto parallel = loss_parallel();
//   auto loss = cross_entropy(logits, target);   // logits S(1) on "tp"
//   loss.backward();                             // in the scope or after it
#pragma once

#include <dtensor/api.h>

namespace dtensor {

/// Scope in which cross_entropy on this rank keeps the class dimension of
/// logits sharded over one mesh dimension. Other mesh dimensions may shard the
/// batch. The forward pass takes three all-reduces of one float32 per sample,
/// the backward pass none. Weights, ignore_index, label smoothing and
/// reductions work as in the plain operator. Half and bfloat16 logits are
/// computed in float32. On the mesh dimension that shards the classes the
/// result is replicated; a sum over a sharded batch is Partial. Target and
/// class weights are DTensors in any layout, or full plain tensors on every
/// rank. Targets may also be class probabilities in the shape of the logits;
/// with probabilities, too, ranks communicate only a few numbers per sample.
/// Scopes nest. With class indices, cross_entropy throws ValueError if two mesh
/// dimensions shard the classes, or if the target is plain and the batch is
/// sharded. nll_loss also takes plain targets and weights in the scope. Python:
/// torch.distributed.tensor.parallel.loss_parallel.
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

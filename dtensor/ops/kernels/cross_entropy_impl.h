// SPDX-License-Identifier: BSD-3-Clause
// Cross entropy of distributed logits, in one differentiable step.
//
// Batch dimensions stay sharded, and a mean is over the global batch. The class
// dimension is gathered, unless loss_parallel() is active: it may then be
// sharded on one mesh dimension. The forward pass then costs three all-reduces
// of one number per sample (largest logit; sum of exponentials; logit of the
// target), while gathering would move every logit. The backward pass
// communicates nothing: it needs the target, the logits and the logarithm of
// that sum.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/layout/spec.h>

namespace dtensor::detail {

/// Number of active loss_parallel() scopes of this rank.
int& loss_parallel_depth();

/// Throws unless `t`, a plain `argument` next to the logits, may count as equal
/// on all ranks: a single number, or any tensor under loss_parallel() or
/// implicit_replication().
void check_may_be_plain(
    const char* argument,
    const at::Tensor& t,
    const Spec& logits);

struct CrossEntropyOptions {
  at::Tensor weight;     // may be undefined
  int64_t reduction = 1; // at::Reduction
  int64_t ignore_index = -100;
  double label_smoothing = 0;
};

/// Computes the cross entropy with class indices. `logits` is a DTensor.
/// `target` is a DTensor, too, or plain under loss_parallel() when no batch
/// dimension is sharded.
at::Tensor cross_entropy(
    const at::Tensor& logits,
    const at::Tensor& target,
    const CrossEntropyOptions& options);

} // namespace dtensor::detail

// SPDX-License-Identifier: BSD-3-Clause
// Cross entropy of distributed logits, in one differentiable step.
//
// Batch dimensions stay sharded, and a mean is that over the whole batch. The
// class dimension is gathered, unless loss_parallel() is active: then it may
// be sharded on one mesh dimension, and forward costs three all-reduces of one
// number per sample (largest logit; sum of exponentials; logit of the target)
// where gathering would move every logit. Backward communicates nothing: it
// needs the target, the logits and the logarithm of that sum.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/layout/spec.h>

namespace dtensor::detail {

/// How many loss_parallel() are active in this rank.
int& loss_parallel_depth();

/// Throws unless `t`, a plain `argument` next to the logits, may count as the
/// same on every rank: one number, or under loss_parallel() or
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

/// Cross entropy with class indices: `logits` is a DTensor, `target` one too,
/// or plain under loss_parallel() when no batch dimension is sharded.
at::Tensor cross_entropy(
    const at::Tensor& logits,
    const at::Tensor& target,
    const CrossEntropyOptions& options);

} // namespace dtensor::detail

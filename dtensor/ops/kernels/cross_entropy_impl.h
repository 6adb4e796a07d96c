// SPDX-License-Identifier: BSD-3-Clause
// Cross entropy of distributed logits, in one differentiable step.
//
// Batch dimensions stay sharded, and a mean is over the global batch. The class
// dimension is gathered, unless loss_parallel() is active: the class dimension
// may then be sharded on one mesh dimension. In this case the forward pass
// costs three all-reduces of one number per sample (largest logit; sum of
// exponentials; logit of the target), while gathering would move every logit.
// The backward pass communicates nothing: it needs the target, the logits and
// the logarithm of the sum.
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

// Local computations of a cross entropy (cross_entropy_local.cpp).

/// Properties of a call, without the tensors of logits and target.
struct CrossEntropyPlan {
  SpecPtr logits; // layout used in the computation
  SpecPtr output;
  int64_t class_dim = 0;
  int64_t class_mesh_dim = -1; // shards the classes; -1: they are unsharded
  int64_t reduction = 1;
  int64_t ignore_index = -100;
  double label_smoothing = 0;

  int64_t classes() const {
    return logits->sizes()[static_cast<size_t>(class_dim)];
  }
  /// Returns the range of classes on this rank.
  Interval my_classes() const;
};

/// Local results of the forward pass. `log_sum` and `total` are at least
/// float32.
struct CrossEntropyState {
  at::Tensor loss;    // output, local
  at::Tensor log_sum; // per sample: logarithm of the sum of exponentials
  at::Tensor total;   // for a mean: its divisor
};

/// Computes the forward pass. `weight` has all classes, or is undefined.
CrossEntropyState cross_entropy_forward(
    const CrossEntropyPlan& plan,
    const at::Tensor& logits,
    const at::Tensor& target,
    const at::Tensor& weight);

/// Computes the gradient of the local logits. `grad` is local: per sample, or
/// 0-d. If the probabilities are undefined, they are computed from log_sum;
/// otherwise the gradient is differentiable with respect to them and to `grad`.
at::Tensor cross_entropy_backward(
    const CrossEntropyPlan& plan,
    const at::Tensor& grad,
    const at::Tensor& logits,
    const at::Tensor& target,
    const at::Tensor& weight,
    const at::Tensor& log_sum,
    const at::Tensor& total,
    const at::Tensor& probabilities);

} // namespace dtensor::detail

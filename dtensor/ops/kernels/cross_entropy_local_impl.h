// SPDX-License-Identifier: BSD-3-Clause
// What one rank computes of a cross entropy: see cross_entropy_impl.h.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/layout/spec.h>

namespace dtensor::detail {

/// Everything about a call but the logits and the target themselves.
struct CrossEntropyPlan {
  SpecPtr logits; // layout that is computed with
  SpecPtr output;
  int64_t class_dim = 0;
  int64_t class_mesh_dim = -1; // cuts the classes; -1: they are whole
  int64_t reduction = 1;
  int64_t ignore_index = -100;
  double label_smoothing = 0;

  int64_t classes() const {
    return logits->sizes()[static_cast<size_t>(class_dim)];
  }
  /// The classes that this rank holds.
  Interval my_classes() const;
};

/// Local tensors. The dtype of numbers is at least float32.
struct CrossEntropyState {
  at::Tensor loss;    // output, local
  at::Tensor log_sum; // per sample: logarithm of the sum of exponentials
  at::Tensor total;   // of a mean: what it is divided by
};

/// `weight` has all classes, or is undefined.
CrossEntropyState cross_entropy_forward(
    const CrossEntropyPlan& plan,
    const at::Tensor& logits,
    const at::Tensor& target,
    const at::Tensor& weight);

/// Gradient of the local logits. `grad` is local: per sample, or 0-d. The
/// probabilities follow from log_sum where they are undefined; else the
/// gradient can be differentiated by them, and by `grad`.
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

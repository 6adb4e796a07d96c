// SPDX-License-Identifier: BSD-3-Clause
// Results of a call: the expected results on plain tensors, and the results on
// DTensors.
#pragma once

#include "call.h"

namespace dtensor::randomized {

enum class Mode : uint8_t { kNoGrad, kGrad };

struct Results {
  Tensors values;                  // results, with lists flattened
  std::vector<c10::IValue> others; // results that are not tensors
  Tensors grads;     // by operand; undefined for operands without a gradient
  Tensors operands;  // after the call
  std::string error; // first line of the forward pass's error; or empty
  std::string backward_error; // of the backward pass
};

/// Calls the operator on `operands`, in the order of tensors_in(). Operands in
/// `mutated` are written, so they are copied first. In Mode::kGrad, operands
/// with a flag in `leaves` require gradients, and differentiable results are
/// differentiated unless `forward_only`.
Results compute(
    const Call& call,
    const Tensors& operands,
    const std::vector<bool>& mutated,
    const std::vector<bool>& leaves,
    Mode mode,
    bool forward_only = false);

struct Truth {
  std::vector<bool> mutated;
  std::vector<bool> leaves;
  Tensors operands;
  Results no_grad;
  Results grad; // if there are leaves
  bool differentiable = false;
  /// True if infinite values are not compared, because they are not sums of
  /// terms.
  bool skips_infinite = false;
};

/// Computes the expected results on plain tensors.
Truth truth_of(const Call& call);

/// Returns the differences of dtypes, shapes and specs between this rank's
/// results and the expected results, or an empty text. Does not communicate.
std::string
shape_difference(const Truth& truth, Mode mode, const Results& mine);

/// Returns the differences of values. Must be called by all ranks, after shapes
/// agree on all ranks.
std::string value_difference(
    const Truth& truth,
    Mode mode,
    const Results& mine,
    Compared compared);

} // namespace dtensor::randomized

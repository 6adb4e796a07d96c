// SPDX-License-Identifier: BSD-3-Clause
// What a call gives: on plain tensors the truth, on DTensors what is compared
// with it.
#pragma once

#include "call.h"

namespace dtensor::nets {

enum class Mode : uint8_t { kNoGrad, kGrad };

struct Results {
  Tensors values;                  // of the results, lists flattened
  std::vector<c10::IValue> others; // results that are no tensors
  Tensors grads;              // of each operand; undefined for those without
  Tensors operands;           // after the call
  std::string error;          // of the forward pass, first line; or empty
  std::string backward_error; // likewise
};

/// Calls on `operands`, which are in the order of tensors_in(). `mutated`
/// are those that the call writes, so that it gets a copy. In Mode::kGrad
/// those whose flag in `leaves` is set require gradients, and the results that
/// are differentiable are differentiated unless `forward_only`.
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
  Results grad; // if any leaf
  bool differentiable = false;
};

/// On plain tensors.
Truth truth_of(const Call& call);

/// How dtypes, shapes and specs of what this rank has differ from the truth;
/// empty if they do not. Communicates nothing.
std::string
shape_difference(const Truth& truth, Mode mode, const Results& mine);

/// The same of values, where shapes agree on all ranks, which all call it.
std::string value_difference(
    const Truth& truth,
    Mode mode,
    const Results& mine,
    Compared compared);

} // namespace dtensor::nets

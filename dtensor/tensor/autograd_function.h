// SPDX-License-Identifier: BSD-3-Clause
// Lets torch::autograd::Function accept a variable declared as DTensor.
//
// LibTorch recognizes the tensors among the arguments of Function::apply by
// their exact type. An argument of a derived class is passed on, but its
// gradient is dropped silently. The specialization below makes Function treat a
// DTensor as a tensor.
//
//   DTensor x = distribute_tensor(...);
//   auto y = Square::apply(x);   // y's gradient reaches x
#pragma once

#include <dtensor/tensor/dtensor.h>
#include <torch/csrc/autograd/custom_function.h>

namespace torch::autograd {

/// Collects `x` as an at::Tensor.
template <>
inline void ExtractVariables::operator()(const dtensor::DTensor& x) {
  (*this)(static_cast<const at::Tensor&>(x));
}

} // namespace torch::autograd

// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/tensor/missing_derivative_impl.h>

#include <torch/csrc/autograd/functions/basic_ops.h>

#include <string>
#include <string_view>

namespace dtensor::detail {

// The gradient's node holds the text of the error that autograd throws.
void name_missing_derivative(const at::Tensor& grad) {
  auto* missing =
      dynamic_cast<torch::autograd::NotImplemented*>(grad.grad_fn().get());
  constexpr std::string_view begin = "derivative for ";
  constexpr std::string_view end = " is not implemented";
  if (missing == nullptr || !missing->msg.starts_with(begin) ||
      !missing->msg.ends_with(end)) {
    return; // its message was replaced already
  }
  const auto op = missing->msg.substr(
      begin.size(), missing->msg.size() - begin.size() - end.size());
  missing->msg = "[" + op +
      "] LibTorch has no derivative for this operator, so the gradients that "
      "it computes cannot be differentiated again. Choose a kernel that has "
      "one (for attention: at::globalContext().setSDPUseFlash(false)), or call "
      "backward() without create_graph.";
}

} // namespace dtensor::detail

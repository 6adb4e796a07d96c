// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/kernels/empty_convolution_impl.h>

#include <dtensor/ops/kernels/over_shards_impl.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <numeric>
#include <optional>

namespace dtensor::detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Returns its first argument. Autograd records that the result depends on the
// others as well, with undefined gradients.
struct AlsoDependsOn : torch::autograd::Function<AlsoDependsOn> {
  static at::Tensor forward(
      AutogradContext* /*ctx*/,
      const at::Tensor& value,
      const at::Tensor& /*grad_output*/,
      const at::Tensor& /*input*/,
      const at::Tensor& /*weight*/) {
    return value;
  }
  static variable_list backward(
      AutogradContext* /*ctx*/,
      const variable_list& grads) {
    return {grads[0], at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

// Returns the product of two tensors without elements: the number 0.
at::Tensor empty_product(const at::Tensor& a, const at::Tensor& b) {
  return a.narrow(0, 0, 0).sum() * b.narrow(0, 0, 0).sum();
}

at::Tensor sum_with_bias(const at::Tensor& output, const at::Tensor& bias) {
  return output + along_dim(bias, 1, output.dim());
}

// Sums over all dimensions but the channels.
at::Tensor gradient_of_bias(const at::Tensor& grad_output) {
  std::vector<int64_t> dims(static_cast<size_t>(grad_output.dim()));
  std::iota(dims.begin(), dims.end(), 0);
  dims.erase(dims.begin() + 1);
  return grad_output.sum(dims);
}

// Adds a bias. LibTorch computes all gradients of a convolution in one
// operator, so that the gradient of the bias depends on the input and the
// weight.
struct AddedBias : torch::autograd::Function<AddedBias> {
  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& output,
      const at::Tensor& bias,
      const at::Tensor& input,
      const at::Tensor& weight) {
    ctx->save_for_backward({input, weight});
    return sum_with_bias(output, bias);
  }
  static variable_list backward(
      AutogradContext* ctx,
      const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const auto gradient = AlsoDependsOn::apply(
        gradient_of_bias(grads[0]), grads[0], saved[0], saved[1]);
    return {grads[0], gradient, at::Tensor(), at::Tensor()};
  }
};

// A convolution without elements: zeros, plus the bias.
struct EmptyConvolution : torch::autograd::Function<EmptyConvolution> {
  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& input,
      const at::Tensor& weight,
      const std::optional<at::Tensor>& bias,
      const at::Tensor& zeros) {
    ctx->save_for_backward({input, weight, bias.value_or(at::Tensor())});
    return bias ? sum_with_bias(zeros, *bias) : zeros.clone();
  }
  static variable_list backward(
      AutogradContext* ctx,
      const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    auto result =
        empty_convolution_gradients(grads[0], saved[0], saved[1], saved[2]);
    result.emplace_back(); // of the zeros
    return result;
  }
};

} // namespace

at::Tensor plus_bias(
    const at::Tensor& output,
    const at::Tensor& bias,
    const at::Tensor& input,
    const at::Tensor& weight) {
  return bias.requires_grad() ? AddedBias::apply(output, bias, input, weight)
                              : sum_with_bias(output, bias);
}

std::vector<at::Tensor> empty_convolution_gradients(
    const at::Tensor& grad_output,
    const at::Tensor& input,
    const at::Tensor& weight,
    const at::Tensor& bias) {
  variable_list result = {
      at::zeros_like(input) + empty_product(grad_output, weight),
      at::zeros_like(weight) + empty_product(grad_output, input),
      at::Tensor()};
  if (bias.defined()) {
    result[2] = gradient_of_bias(grad_output);
  }
  for (auto& gradient : result) {
    if (gradient.defined()) {
      gradient = AlsoDependsOn::apply(gradient, grad_output, input, weight);
    }
  }
  return result;
}

at::Tensor empty_convolution(
    const at::Tensor& input,
    const at::Tensor& weight,
    const at::Tensor& bias,
    const at::Tensor& zeros) {
  return EmptyConvolution::apply(
      input,
      weight,
      bias.defined() ? std::optional(bias) : std::nullopt,
      zeros);
}

} // namespace dtensor::detail

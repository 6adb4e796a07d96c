// SPDX-License-Identifier: BSD-3-Clause
// Pointwise operators for which LibTorch has no meta kernel in C++, and those
// that are pointwise only in part.
#include <dtensor/error.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/rules/families_impl.h>
#include <dtensor/ops/rules/pointwise_impl.h>
#include <dtensor/ops/stack_impl.h>

#include <ATen/ExpandUtils.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/ones.h>

namespace dtensor {
namespace {

using namespace detail;

OutputMeta like(const OpInput& input, at::ScalarType dtype) {
  return {
      Sizes(input.sizes().begin(), input.sizes().end()),
      Sizes(input.spec->strides().begin(), input.spec->strides().end()),
      dtype,
      true};
}

// `count` results like the operand numbered `input`.
MetaRule results_like(size_t input, size_t count) {
  return [=](const OpCall& call) {
    const auto& operand = call.inputs[input];
    return std::vector<OutputMeta>(count, like(operand, operand.spec->dtype()));
  };
}

std::vector<OutputMeta> floating_like_self(const OpCall& call) {
  const auto& self = call.inputs[0];
  const auto dtype = self.spec->dtype();
  const bool integral = at::isIntegralType(dtype, /*includeBool=*/true);
  return {
      like(self, integral ? c10::get_default_dtype_as_scalartype() : dtype)};
}

std::vector<OutputMeta> mantissa_and_exponent(const OpCall& call) {
  const auto& self = call.inputs[0];
  return {like(self, self.spec->dtype()), like(self, at::kInt)};
}

// In evaluation it is a leaky_relu of the mean slope; in training it draws
// random slopes.
void rrelu(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  torch::jit::pop(*stack); // generator
  const bool training = torch::jit::pop(*stack).toBool();
  const auto upper = torch::jit::pop(*stack).toScalar().toDouble();
  const auto lower = torch::jit::pop(*stack).toScalar().toDouble();
  torch::jit::pop(*stack); // noise
  const auto self = torch::jit::pop(*stack).toTensor();
  DTENSOR_CHECK_NOT_IMPLEMENTED(
      !training,
      "aten::rrelu_with_noise",
      "draws random slopes in training, which every rank would draw "
      "differently. Use leaky_relu, or evaluation mode.");
  stack->emplace_back(at::leaky_relu(self, (lower + upper) / 2));
}

// What counts in the dtype of a result: the operand's own, whether it has
// dimensions, and whether it is a number in disguise.
at::Tensor one_element(const at::Tensor& operand, const OpInput& input) {
  const Sizes ones(static_cast<size_t>(input.dim()), 1);
  auto one = at::ones(ones, at::TensorOptions().dtype(input.spec->dtype()));
  if (operand.unsafeGetTensorImpl()->is_wrapped_number()) {
    one.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return one;
}

} // namespace

std::vector<OutputMeta> detail::pointwise_meta(const OpCall& call) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(
      call.schema.name().c_str(), call.schema.overload_name().c_str());
  torch::jit::Stack stack(call.args.begin(), call.args.end());
  std::vector<int64_t> sizes;
  map_tensors(stack.data(), stack.size(), [&](const at::Tensor& t, size_t i) {
    const auto& input = call.inputs[i];
    sizes = at::infer_size(sizes, input.sizes());
    return one_element(t, input);
  });
  op.callBoxed(stack);
  Sizes strides = contiguous_strides(sizes);
  for (const auto& input : call.inputs) {
    if (input.sizes() == SizesRef(sizes)) {
      strides = dense_strides(sizes, input.spec->strides());
      break;
    }
  }
  std::vector<OutputMeta> outputs;
  for (const auto& value : stack) {
    outputs.push_back(
        {Sizes(sizes.begin(), sizes.end()),
         strides,
         value.toTensor().scalar_type(),
         true});
  }
  return outputs;
}

DTENSOR_RULES(pointwise_special) {
  const PartialWays linear = {sum_ops(), {{0}}};
  rules.dim_rule("rsub.Tensor", pointwise_rule({sum_ops(), {{0, 1}}}))
      .with_meta(pointwise_meta);
  rules.dim_rule("rsub.Scalar", pointwise_rule({{ReduceOp::kAvg}, {{0}}}))
      .with_meta(pointwise_meta);
  rules.dim_rule("frexp.Tensor", pointwise_rule())
      .with_meta(mantissa_and_exponent);
  rules.dim_rule("log_sigmoid_forward", pointwise_rule())
      .with_meta(results_like(0, 2));
  rules.dim_rule("log_sigmoid_backward", pointwise_rule(linear))
      .with_meta(results_like(0, 1));
  rules.dim_rule("_prelu_kernel", pointwise_rule())
      .with_meta(results_like(0, 1));
  rules.dim_rule("_prelu_kernel_backward", pointwise_rule(linear))
      .with_meta(results_like(0, 2));
  // It makes a plain range of its own, which only local tensors can meet.
  rules.dim_rule("mvlgamma", pointwise_rule())
      .with_meta(floating_like_self)
      .as_region();
  rules.dim_rule("mvlgamma_", pointwise_rule())
      .with_meta(results_like(0, 1))
      .with_traits({.plain_in_gradient = true});
  rules.kernel("rrelu_with_noise", rrelu);
}

} // namespace dtensor

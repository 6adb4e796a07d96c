// SPDX-License-Identifier: BSD-3-Clause
// Pointwise operators for which LibTorch has no meta kernel in C++, and
// operators that are only partly pointwise.
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/local_kernels_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/rules/pointwise_impl.h>

#include <c10/core/DefaultDtype.h>

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

// Returns `count` results like the operand numbered `input`.
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

} // namespace

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
  // It creates a plain range internally, which only works with local tensors.
  rules.dim_rule("mvlgamma", pointwise_rule())
      .with_meta(floating_like_self)
      .as_region();
  rules.dim_rule("mvlgamma_", pointwise_rule())
      .with_meta(results_like(0, 1))
      .with_traits({.gradient_makes_plain = true});
}

} // namespace dtensor

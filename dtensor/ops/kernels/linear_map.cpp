// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/kernels/linear_map_impl.h>

#include <dtensor/tensor/layout_steps_impl.h>

#include <torch/csrc/autograd/custom_function.h>

namespace dtensor::detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct ApplyLinearMap : torch::autograd::Function<ApplyLinearMap> {
  // `known` is the result if it has been computed already; null otherwise.
  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& t,
      const LinearMapPtr& map,
      bool adjoint,
      const at::Tensor* known) {
    ctx->saved_data["map"] = c10::IValue::make_capsule(map);
    ctx->saved_data["adjoint"] = adjoint;
    return known != nullptr ? known->clone()
        : adjoint           ? map->apply_adjoint(t)
                            : map->apply(t);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto map = c10::static_intrusive_pointer_cast<LinearMap>(
        ctx->saved_data["map"].toCapsule());
    const bool adjoint = ctx->saved_data["adjoint"].toBool();
    const at::Tensor* const unknown = nullptr;
    return {apply(grads[0], map, !adjoint, unknown), {}, {}, {}};
  }
};

} // namespace

at::Tensor apply_linear(
    const at::Tensor& t,
    const LinearMapPtr& map,
    const at::Tensor& known) {
  const auto* result = known.defined() ? &known : nullptr;
  return records(t)       ? ApplyLinearMap::apply(t, map, false, result)
      : result != nullptr ? known
                          : map->apply(t);
}

at::Tensor apply_adjoint(const at::Tensor& t, const LinearMapPtr& map) {
  const at::Tensor* const unknown = nullptr;
  return records(t) ? ApplyLinearMap::apply(t, map, true, unknown)
                    : map->apply_adjoint(t);
}

} // namespace dtensor::detail

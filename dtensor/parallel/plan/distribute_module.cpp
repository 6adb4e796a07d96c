// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/distribute_module.h>

#include <ATen/core/grad_mode.h>
#include <dtensor/comm/mesh_scope.h>
#include <dtensor/layout/spec_impl.h>
#include <dtensor/parallel/plan/module_claim_impl.h>
#include <dtensor/parallel/plan/plan_changes_impl.h>
#include <dtensor/tensor/dtensor.h>
#include <dtensor/tensor/gradient_impl.h>
#include <dtensor/tensor/tensor_replacement_impl.h>
#include <torch/nn/module.h>

#include <utility>

namespace dtensor {
namespace {

// Replaces a parameter in place. set_data() of a meta tensor rejects a DTensor,
// because the backends differ.
void turn_into(at::Tensor& parameter, const at::Tensor& dtensor) {
  if (parameter.is_meta()) {
    detail::replace_tensor_impl(parameter, dtensor);
  } else {
    parameter.set_data(dtensor);
  }
}

void replicate_in_place(at::Tensor& tensor, const DeviceMesh& mesh) {
  if (tensor.defined() && !is_dtensor(tensor)) {
    distribute_parameter(tensor, mesh, detail::replicated_placements(mesh));
  }
}

void add_hooks(
    torch::nn::Module& module,
    const DeviceMesh& mesh,
    const ModuleTensorsFn& input_fn,
    const ModuleTensorsFn& output_fn) {
  if (!input_fn && !output_fn) {
    return;
  }
  auto& hooks = detail::hooks_of({module, "", mesh, 0}, "distribute_module");
  if (input_fn) {
    hooks.add_forward_pre_hook(
        [input_fn, mesh](const auto& tensors) { input_fn(tensors, mesh); });
  }
  if (output_fn) {
    hooks.add_forward_hook(
        [output_fn, mesh](const auto& tensors) { output_fn(tensors, mesh); });
  }
}

} // namespace

void distribute_parameter(
    at::Tensor& parameter,
    const DeviceMesh& mesh,
    PlacementsRef placements,
    std::optional<int64_t> src_data_rank) {
  const c10::NoGradGuard no_grad;
  const detail::ModuleClaim claim("distribute_parameter", parameter);
  detail::check_not_replicated(parameter, "distribute_parameter");
  // Functions that may throw come before the first change.
  const auto value =
      distribute_tensor(parameter.detach(), mesh, placements, src_data_rank);
  auto gradient = parameter.mutable_grad();
  if (gradient.defined() && !is_dtensor(gradient)) {
    gradient = distribute_tensor(gradient, mesh, placements, std::nullopt);
  }
  const bool requires_grad = parameter.requires_grad();
  parameter.mutable_grad() = at::Tensor();
  turn_into(parameter, value);
  parameter.set_requires_grad(requires_grad);
  parameter.mutable_grad() = std::move(gradient);
  detail::keep_gradient_in_layout(parameter);
}

void distribute_module(
    torch::nn::Module& module,
    const DeviceMesh& given_mesh,
    const PartitionFn& partition_fn,
    const ModuleTensorsFn& input_fn,
    const ModuleTensorsFn& output_fn) {
  const auto mesh = detail::mesh_or_current(given_mesh, "distribute_module");
  const detail::ModuleClaim claim("distribute_module", module);
  add_hooks(module, mesh, input_fn, output_fn);
  if (partition_fn) {
    partition_fn("", module, mesh);
    for (auto& child : module.named_modules("", /*include_self=*/false)) {
      partition_fn(child.key(), *child.value(), mesh);
    }
  }
  for (auto& parameter : module.parameters()) {
    replicate_in_place(parameter, mesh);
  }
  for (auto& buffer : module.buffers()) {
    replicate_in_place(buffer, mesh);
  }
}

} // namespace dtensor

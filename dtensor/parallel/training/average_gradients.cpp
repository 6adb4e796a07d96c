// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/gradients.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/flatten_dense_tensors.h>
#include <dtensor/comm/group/shard_buffers_impl.h>
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/comm/mesh_scope.h>
#include <dtensor/comm/observer.h>
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/parallel/training/shared_ranks_impl.h>
#include <dtensor/tensor/is_dtensor.h>
#include <dtensor/tensor/meta_impl.h>

#include <map>
#include <tuple>

namespace dtensor {
namespace {

constexpr const char* kAverageGradients = "average_gradients";

// Returns the local tensor of the gradient.
at::Tensor gradient_shard(const at::Tensor& grad, const DeviceMesh& mesh) {
  if (!is_dtensor(grad)) {
    return grad;
  }
  const auto& spec = detail::spec_of(grad);
  DTENSOR_CHECK_VALUE(
      !detail::share_others(spec->mesh(), mesh),
      "[{}] a gradient is {}, distributed over ranks of {}, and already "
      "summed over them. Pass the mesh dimension over which models are "
      "replicated.",
      kAverageGradients,
      *spec,
      mesh);
  return detail::local_of(grad);
}

void average(const std::vector<at::Tensor>& parts, Group& group) {
  const auto means = detail::out_of_buffer(
      group.all_reduce(at::flatten_dense_tensors(parts), ReduceOp::kAvg),
      detail::shapes_of(parts));
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i].copy_(means[i]);
  }
}

} // namespace

void average_gradients(at::TensorList parameters, const DeviceMesh& given) {
  const auto mesh = detail::mesh_or_current(given, kAverageGradients);
  DTENSOR_CHECK_VALUE(
      mesh.ndim() == 1,
      "[{}] gradients are averaged over one mesh dimension, but the mesh is "
      "{}. Pass a slice, such as mesh[\"dp\"].",
      kAverageGradients,
      mesh);
  if (mesh.size() == 1 || !mesh.contains_this_rank()) {
    return;
  }
  const c10::NoGradGuard no_grad;
  const detail::ModuleScope scope("gradients", /*backward=*/true);
  std::map<std::tuple<at::ScalarType, c10::DeviceType>, std::vector<at::Tensor>>
      by_dtype;
  for (const auto& parameter : parameters) {
    if (parameter.grad().defined()) {
      auto part = gradient_shard(parameter.grad(), mesh);
      by_dtype[{part.scalar_type(), part.device().type()}].push_back(
          std::move(part));
    }
  }
  for (auto& [dtype, parts] : by_dtype) {
    average(parts, get_group(mesh));
  }
}

} // namespace dtensor

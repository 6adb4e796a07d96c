// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/tensor/dtensor.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <dtensor/comm/group/owner_impl.h>
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/comm/mesh_scope.h>
#include <dtensor/error.h>
#include <dtensor/layout/spec_impl.h>
#include <dtensor/layout/text.h>
#include <dtensor/redistribute/execute.h>
#include <dtensor/redistribute/local_slice_impl.h>
#include <dtensor/tensor/gradient_impl.h>
#include <dtensor/tensor/memory_order_impl.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/tensor_replacement_impl.h>
#include <dtensor/tensor/wrap_impl.h>

namespace dtensor {
namespace {

constexpr const char* kDistributeTensor = "distribute_tensor";

at::Tensor check_layout(
    const at::Tensor& tensor,
    const DeviceMesh& mesh,
    PlacementsRef layout) {
  const auto& spec = detail::spec_of(tensor);
  detail::check_owned_by_this_rank(kDistributeTensor, *spec);
  DTENSOR_CHECK_VALUE(
      spec->mesh() == mesh && spec->placements() == layout,
      "[{}] the tensor is already a DTensor, {}, and not in the requested "
      "layout, {} on {}. Use redistribute().",
      kDistributeTensor,
      *spec,
      to_string(layout),
      mesh);
  return tensor;
}

// Splits `tensor` along one mesh dimension into one shard per rank of the
// group.
std::vector<at::Tensor>
parts_of(const at::Tensor& tensor, const Placement& placement, int64_t n) {
  std::vector<at::Tensor> parts;
  const int64_t dim = placement.dim();
  const Intervals all = {Interval{0, tensor.size(dim)}};
  for (int64_t r = 0; r < n; ++r) {
    const auto intervals = shard_intervals(all, placement, n, r);
    parts.push_back(
        detail::select_intervals(tensor, dim, intervals).contiguous());
  }
  return parts;
}

// Broadcasts or scatters the tensor of rank `root` along one mesh dimension.
// Mesh dimensions are processed from left to right. On entry, `tensor` has, on
// every rank of the group, the local shape after the earlier mesh dimensions.
at::Tensor from_root(
    const at::Tensor& tensor,
    const Placement& placement,
    Group& group,
    int64_t root) {
  if (!placement.is_sharded()) {
    return group.broadcast(tensor.contiguous(), root);
  }
  auto parts = parts_of(tensor, placement, group.size());
  const auto like = parts[static_cast<size_t>(group.rank())];
  if (group.rank() != root) {
    parts.clear();
  }
  return group.scatter(parts, like, root);
}

// Returns dense strides in the memory order of the tensor; row-major for a
// tensor that overlaps itself and has no memory order.
Sizes order_in_memory(const at::Tensor& tensor) {
  return detail::is_expanded(tensor.sizes(), tensor.strides())
      ? dtensor::contiguous_strides(tensor.sizes())
      : dense_strides(tensor.sizes(), tensor.strides());
}

at::Tensor scatter_to_ranks(
    const at::Tensor& tensor,
    const SpecPtr& spec,
    int64_t src_data_rank) {
  at::Tensor local = tensor;
  for (int64_t m = 0; m < spec->mesh().ndim(); ++m) {
    auto& group = get_group(spec->mesh(), m);
    DTENSOR_CHECK_VALUE(
        src_data_rank >= 0 && src_data_rank < group.size(),
        "[{}] src_data_rank {} is out of range for mesh dim {} of size {}. "
        "Pass a position along the mesh dimension, from 0.",
        kDistributeTensor,
        src_data_rank,
        spec->mesh().dim_label(m),
        group.size());
    local = from_root(
        local,
        spec->placements()[static_cast<size_t>(m)],
        group,
        src_data_rank);
  }
  return local;
}

// Returns a local meta tensor with a note that refers to the distributed
// tensor.
at::Tensor part_of_meta(const at::Tensor& tensor, const Spec& spec) {
  const auto sizes = spec.local_sizes();
  auto part = spec.mesh().contains_this_rank()
      ? at::empty_strided(
            sizes, dense_strides(sizes, spec.strides()), tensor.options())
      : at::empty(sizes, tensor.options());
  part.unsafeGetTensorImpl()->set_backend_meta(
      c10::make_intrusive<detail::MetaShardNote>(tensor.detach()));
  return part;
}

at::Tensor local_part(
    const at::Tensor& tensor,
    const SpecPtr& spec,
    std::optional<int64_t> src_data_rank) {
  const c10::NoGradGuard no_grad;
  if (tensor.is_meta()) {
    return part_of_meta(tensor, *spec);
  }
  if (!spec->mesh().contains_this_rank()) {
    return at::empty({0}, tensor.options());
  }
  at::Tensor local = tensor.detach();
  if (src_data_rank) {
    local = scatter_to_ranks(local, spec, *src_data_rank);
    const auto before = detail::without_partial(spec->placements());
    // Keeps the first term of a Partial tensor.
    local = redistribute_local(local, spec->with_placements(before), spec);
  } else {
    local =
        redistribute_local(local, detail::fully_replicated_spec(*spec), spec);
  }
  // A distributed tensor never shares memory with the plain tensor.
  local = detail::in_memory_order(local, spec->strides());
  return local.is_alias_of(tensor) ? local.clone() : local;
}

} // namespace

at::Tensor distribute_tensor(
    const at::Tensor& tensor,
    const DeviceMesh& given_mesh,
    PlacementsRef placements,
    std::optional<int64_t> src_data_rank) {
  const auto mesh = detail::mesh_or_current(given_mesh, kDistributeTensor);
  DTENSOR_CHECK(
      tensor.is_leaf(),
      "[{}] the tensor is not a leaf of the autograd graph, and distributing "
      "it would break the graph. Use from_local, or detach() it.",
      kDistributeTensor);
  const auto layout = normalize_placements(
      mesh,
      placements_or_replicated(mesh, placements),
      tensor.dim(),
      kDistributeTensor);
  if (is_dtensor(tensor)) {
    return check_layout(tensor, mesh, layout);
  }
  detail::check_dense(kDistributeTensor, tensor);
  at::Tensor full = tensor;
  if (!tensor.is_meta() && tensor.device().type() != mesh.device_type()) {
    full = tensor.to(mesh.device_type());
  }
  const auto spec = Spec::make(
      mesh,
      layout,
      full.sizes(),
      order_in_memory(full),
      full.scalar_type(),
      kDistributeTensor);
  auto result = detail::wrap(local_part(full, spec, src_data_rank), spec);
  detail::explain_no_data(result);
  detail::keep_gradient_distributed(result);
  result.set_requires_grad(tensor.requires_grad());
  return result;
}

} // namespace dtensor

// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/gradients.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/flatten_dense_tensors.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/scalar_tensor.h>
#include <dtensor/comm/group/shard_buffers_impl.h>
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/comm/mesh_scope.h>
#include <dtensor/comm/observer.h>
#include <dtensor/error.h>
#include <dtensor/layout/mesh_state_impl.h>
#include <dtensor/layout/spec_impl.h>
#include <dtensor/layout/text.h>
#include <dtensor/redistribute/execute.h>
#include <dtensor/tensor/is_dtensor.h>
#include <dtensor/tensor/layout_steps_impl.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/replica_observer_impl.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <unordered_set>
#include <utility>

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
      "[{}] a gradient is {}, distributed over ranks of {}, and already summed "
      "over them. Pass the mesh dimension over which models are replicated.",
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

constexpr const char* kClipGradNorm = "clip_grad_norm_";

// Accumulates sums of |x|^p, or the maximum of |x|. Both can be combined over
// shards.
class Norm {
 public:
  explicit Norm(double p) : p_(p) {}

  double of(const at::Tensor& part) const {
    if (part.numel() == 0) {
      return 0;
    }
    const auto norm =
        at::linalg_vector_norm(part, p_).to(at::kDouble).item<double>();
    return is_largest() ? norm : std::pow(norm, p_);
  }
  double together(double a, double b) const {
    // NaN must propagate.
    return is_largest() ? (std::isnan(a) || a > b ? a : b) : a + b;
  }
  double over_ranks(double mine, Group& group) const {
    const auto all = group.all_reduce(
        at::scalar_tensor(mine, at::kDouble),
        is_largest() ? ReduceOp::kMax : ReduceOp::kSum);
    return all.item<double>();
  }
  double finish(double value) const {
    return is_largest() ? value : std::pow(value, 1 / p_);
  }

 private:
  bool is_largest() const {
    return std::isinf(p_);
  }
  double p_;
};

/// Gradients that are sharded over the same ranks.
struct Bucket {
  DeviceMesh mesh; // undefined: replicated
  std::vector<int64_t> dims;
  double value = 0;
};

// Returns the mesh dimensions that shard a tensor.
std::vector<int64_t> sharding_mesh_dims(const Spec& spec) {
  std::vector<int64_t> dims;
  for (int64_t m = 0; m < spec.mesh().ndim(); ++m) {
    if (spec.placements()[static_cast<size_t>(m)].is_sharded() &&
        spec.mesh().size(m) > 1) {
      dims.push_back(m);
    }
  }
  return dims;
}

Bucket& bucket_of(
    std::vector<Bucket>& buckets,
    const DeviceMesh& mesh,
    std::vector<int64_t> dims) {
  const auto found = std::ranges::find_if(buckets, [&](const auto& b) {
    return b.dims == dims && (dims.empty() || b.mesh == mesh);
  });
  if (found != buckets.end()) {
    return *found;
  }
  buckets.push_back({mesh, std::move(dims)});
  return buckets.back();
}

// Checks that this rank is in the meshes of all gradients, or of none. The
// ranks of a mesh add its gradients to their norm, which would differ from that
// of this rank.
void check_meshes(const std::vector<at::Tensor>& grads) {
  const auto outside = std::ranges::find_if(grads, detail::is_outside_mesh);
  if (outside == grads.end() ||
      std::ranges::all_of(grads, detail::is_outside_mesh)) {
    return;
  }
  const auto& spec = *detail::spec_of(*outside);
  DTENSOR_THROW_VALUE(
      "[{}] a gradient is {}, on a mesh without rank {}, which has other "
      "gradients, so norms would differ between ranks. Clip the parameters of "
      "each mesh separately.",
      kClipGradNorm,
      spec,
      spec.mesh().get_rank());
}

// Reduces Partial gradients first, because a norm is not linear.
void add_distributed(
    std::vector<Bucket>& buckets,
    const at::Tensor& grad,
    const Norm& norm) {
  auto spec = detail::spec_of(grad);
  auto local = detail::local_of(grad);
  if (!spec->mesh().contains_this_rank()) {
    return;
  }
  if (spec->has_partial()) {
    const auto reduced =
        spec->with_placements(detail::without_partial(spec->placements()));
    local = redistribute_local(local, spec, reduced);
    spec = reduced;
  }
  auto& bucket = bucket_of(buckets, spec->mesh(), sharding_mesh_dims(*spec));
  bucket.value = norm.together(bucket.value, norm.of(local));
}

// First combines local norms per set of sharding mesh dimensions, so that each
// set takes one all-reduce per dimension, for any number of gradients.
double norm_of_all(const std::vector<at::Tensor>& grads, const Norm& norm) {
  std::vector<Bucket> buckets;
  for (const auto& grad : grads) {
    if (is_dtensor(grad)) {
      add_distributed(buckets, grad, norm);
    } else {
      auto& bucket = bucket_of(buckets, DeviceMesh(), {});
      bucket.value = norm.together(bucket.value, norm.of(grad));
    }
  }
  double total = 0;
  for (auto& [mesh, dims, value] : buckets) {
    for (const int64_t dim : dims) {
      value = norm.over_ranks(value, get_group(mesh, dim));
    }
    total = norm.together(total, value);
  }
  return norm.finish(total);
}

// Notifies observers that the norm is replicated on each gradient's mesh.
void notify_norm(const std::vector<at::Tensor>& grads, double total) {
  std::vector<DeviceMesh> meshes;
  for (const auto& grad : grads) {
    if (is_dtensor(grad)) {
      const auto& mesh = detail::spec_of(grad)->mesh();
      if (std::ranges::find(meshes, mesh) == meshes.end()) {
        meshes.push_back(mesh);
      }
    }
  }
  const auto norm = at::scalar_tensor(total, at::kDouble);
  for (const auto& mesh : meshes) {
    const auto placements = detail::replicated_placements(mesh);
    detail::notify_replica_observers(
        {detail::ReplicaKind::kNorm, norm, mesh, placements});
  }
}

// Returns the gradients. The gradient of a shared parameter occurs once.
std::vector<at::Tensor> gradients_of(at::TensorList parameters) {
  std::vector<at::Tensor> grads;
  std::unordered_set<const void*> known;
  for (const auto& parameter : parameters) {
    const auto& grad = parameter.grad();
    if (grad.defined() && known.insert(grad.unsafeGetTensorImpl()).second) {
      grads.push_back(grad);
    }
  }
  return grads;
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

double clip_grad_norm_(
    at::TensorList parameters,
    double max_norm,
    double norm_type,
    bool error_if_nonfinite) {
  DTENSOR_CHECK_VALUE(
      norm_type > 0,
      "[{}] invalid norm_type: {}. Use a positive number, or infinity for the "
      "largest magnitude.",
      kClipGradNorm,
      norm_type);
  const c10::NoGradGuard no_grad;
  const detail::ModuleScope scope("gradients", /*backward=*/true);
  const auto grads = gradients_of(parameters);
  check_meshes(grads);
  const double total = norm_of_all(grads, Norm(norm_type));
  DTENSOR_CHECK(
      !error_if_nonfinite || std::isfinite(total),
      "[{}] the norm of the gradients is {}. Look for gradients that are not "
      "finite, or pass error_if_nonfinite = false.",
      kClipGradNorm,
      total);
  if (C10_UNLIKELY(detail::replicas_observed())) {
    notify_norm(grads, total);
  }
  constexpr double kSmall = 1e-6; // as in torch.nn.utils
  const double scale = max_norm / (total + kSmall);
  if (scale < 1 || std::isnan(scale)) {
    for (const auto& grad : grads) {
      grad.mul_(scale);
    }
  }
  return total;
}

} // namespace dtensor

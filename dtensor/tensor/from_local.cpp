// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/tensor/dtensor.h>

#include <dtensor/comm/backend/rank_notes_impl.h>
#include <dtensor/comm/group/owner_impl.h>
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/comm/mesh_scope.h>
#include <dtensor/comm/rank/plain_draws_impl.h>
#include <dtensor/error.h>
#include <dtensor/layout/mesh_state_impl.h>
#include <dtensor/layout/shard_math.h>
#include <dtensor/layout/spec_impl.h>
#include <dtensor/layout/text.h>
#include <dtensor/tensor/autograd_impl.h>
#include <dtensor/tensor/gradient_impl.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/replica_observer_impl.h>
#include <dtensor/tensor/wrap_impl.h>

#include <algorithm>

namespace dtensor {
namespace {

constexpr const char* kFromLocal = "from_local";

// Infers the global shape and strides, assuming that all shards have the size
// of `local`. A dimension sharded over n ranks has n times the local size, and
// dimensions outside of it in memory have n times the local stride.
void infer_global(
    const at::Tensor& local,
    const DeviceMesh& mesh,
    PlacementsRef placements,
    Sizes& sizes,
    Sizes& strides) {
  sizes.assign(local.sizes().begin(), local.sizes().end());
  strides.assign(local.strides().begin(), local.strides().end());
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    const auto& p = placements[static_cast<size_t>(m)];
    if (!p.is_sharded()) {
      continue;
    }
    const auto dim = static_cast<size_t>(p.dim());
    const auto sharded_stride = local.stride(p.dim());
    sizes[dim] *= mesh.size(m);
    for (size_t d = 0; d < strides.size(); ++d) {
      if (d != dim && local.strides()[d] >= sharded_stride &&
          (local.strides()[d] > sharded_stride || d < dim)) {
        strides[d] *= mesh.size(m);
      }
    }
  }
}

// Returns the global spec of `local`. `placements` must be normalized.
SpecPtr global_spec(
    const at::Tensor& local,
    const DeviceMesh& mesh,
    PlacementsRef placements,
    const FromLocalOptions& options) {
  DTENSOR_CHECK_VALUE(
      options.shape || !options.stride,
      "[{}] got stride without shape. Pass both, or neither.",
      kFromLocal);
  DTENSOR_CHECK_VALUE(
      !options.stride ||
          std::ranges::all_of(
              *options.stride, [](int64_t stride) { return stride >= 0; }),
      "[{}] got strides {}. Pass non-negative strides.",
      kFromLocal,
      at::IntArrayRef(*options.stride));
  Sizes sizes;
  Sizes strides;
  if (options.shape) {
    sizes.assign(options.shape->begin(), options.shape->end());
    strides = options.stride
        ? Sizes(options.stride->begin(), options.stride->end())
        : dense_strides(sizes, local.strides());
  } else {
    infer_global(local, mesh, placements, sizes, strides);
  }
  const bool is_empty = std::ranges::find(sizes, 0) != sizes.end();
  // Ranks may have created empty tensors in different memory orders.
  if (is_empty && !options.stride) {
    strides = dtensor::contiguous_strides(sizes);
  }
  return detail::make_normalized(
      mesh, placements, sizes, strides, local.scalar_type(), kFromLocal);
}

void check_ranks_agree(const at::Tensor& local, const Spec& spec) {
  const auto mine =
      to_string(spec) + (local.requires_grad() ? " requires_grad" : "");
  for (int64_t m = 0; m < spec.mesh().ndim(); ++m) {
    auto& group = get_group(spec.mesh(), m);
    const auto all = group.all_gather_strings(mine);
    for (size_t r = 0; r < all.size(); ++r) {
      DTENSOR_CHECK_VALUE(
          all[r] == all[0],
          "[{}] ranks of {} disagree: rank {} has {}, rank {} has {}. Pass the "
          "same global shape on every rank.",
          kFromLocal,
          spec.mesh().dim_label(m),
          group.ranks()[0],
          all[0],
          group.ranks()[r],
          all[r]);
    }
  }
}

at::Tensor same_replicas(const at::Tensor& local, const Spec& spec) {
  auto result = local;
  for (int64_t m = 0; m < spec.mesh().ndim() && !local.is_meta(); ++m) {
    if (spec.placements()[static_cast<size_t>(m)].is_replicate()) {
      result = get_group(spec.mesh(), m).broadcast(result, 0);
    }
  }
  return result;
}

at::Tensor on_device_of(const DeviceMesh& mesh, const at::Tensor& local) {
  return local.is_meta() || local.device().type() == mesh.device_type()
      ? local
      : local.to(mesh.device_type());
}

} // namespace

void detail::note_inferred(const Spec& spec) {
  if (mesh_groups(spec.mesh()) == nullptr) {
    return;
  }
  for (int64_t m = 0; m < spec.mesh().ndim(); ++m) {
    get_group(spec.mesh(), m).assume(spec);
  }
}

// Returns the checked `placements`, or Replicate on each mesh dimension if
// `placements` is empty.
static Placements stated_layout(
    const at::Tensor& local,
    const DeviceMesh& mesh,
    PlacementsRef placements,
    const FromLocalOptions& options) {
  const auto ndim =
      options.shape ? static_cast<int64_t>(options.shape->size()) : local.dim();
  return placements.empty()
      ? placements_or_replicated(mesh, placements)
      : normalize_placements(mesh, placements, ndim, kFromLocal);
}

// Returns the layout of the gradient, if the caller specified one.
static std::optional<Placements> stated_grad_layout(
    const Spec& spec,
    const FromLocalOptions& options) {
  const auto& stated = options.grad_placements;
  return stated ? std::optional(detail::checked_grad_placements(
                      spec, *stated, kFromLocal))
                : std::nullopt;
}

at::Tensor detail::from_local_lazy(
    const at::Tensor& local,
    const DeviceMesh& mesh,
    PlacementsRef placements,
    const FromLocalOptions& options) {
  if (!mesh.defined()) {
    return from_local_lazy(
        local, mesh_or_current(mesh, kFromLocal), placements, options);
  }
  if (!is_of_this_thread(mesh)) {
    check_owned_by_this_rank(kFromLocal, mesh);
  }
  DTENSOR_CHECK_TYPE(
      !is_dtensor(local),
      "[{}] the local tensor is a DTensor already. Use redistribute() to "
      "change its layout.",
      kFromLocal);
  check_dense(kFromLocal, local);
  const auto layout = stated_layout(local, mesh, placements, options);
  const auto mine = on_device_of(mesh, local);
  const auto spec = global_spec(mine, mesh, layout, options);
  record_converted_back(*spec);
  if (!mesh.contains_this_rank()) { // its backward pass must run too
    return from_local_autograd(mine.reshape({-1}).narrow(0, 0, 0), spec);
  }
  check_local_shape(kFromLocal, mine, *spec);
  at::Tensor values;
  if (options.run_check) {
    check_ranks_agree(mine, *spec);
    const auto shared = same_replicas(mine, *spec);
    values = shared.is_same(mine) ? at::Tensor() : shared;
  }
  at::Tensor result = from_local_autograd(
      mine, spec, stated_grad_layout(*spec, options), values);
  if (!options.run_check && !options.shape) {
    const AssumedTensor noted(result);
    note_inferred(*spec);
  }
  return result;
}

at::Tensor DTensor::from_local(
    const at::Tensor& local,
    const DeviceMesh& mesh,
    PlacementsRef placements,
    const FromLocalOptions& options) {
  auto result = detail::from_local_lazy(local, mesh, placements, options);
  if (detail::spec_of(result)->mesh().contains_this_rank()) {
    detail::explain_no_data(result);
    if (C10_UNLIKELY(detail::replicas_observed())) {
      detail::notify_replicas(detail::ReplicaKind::kLocal, result);
    }
  }
  return result;
}

} // namespace dtensor

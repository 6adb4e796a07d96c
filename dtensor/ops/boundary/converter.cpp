// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/boundary/converter_impl.h>

#include <ATen/core/grad_mode.h>
#include <dtensor/comm/backend/rank_notes_impl.h>
#include <dtensor/comm/group/owner_impl.h>
#include <dtensor/comm/observer.h>
#include <dtensor/comm/rank/plain_draws_impl.h>
#include <dtensor/error.h>
#include <dtensor/layout/shard_math.h>
#include <dtensor/layout/text.h>
#include <dtensor/redistribute/execute.h>
#include <dtensor/tensor/autograd_impl.h>
#include <dtensor/tensor/dtensor.h>
#include <dtensor/tensor/is_dtensor.h>
#include <dtensor/tensor/layout_steps_impl.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/wrap_impl.h>

namespace dtensor::detail {
namespace {

// Returns the dimension of the features, for a tensor with at least one
// dimension.
int64_t features_dim(const at::Tensor& x, const InputLayouts& layouts) {
  return (layouts.features_dim + x.dim()) % x.dim();
}

// Returns true if `plain` shards the features.
bool shards_features(const at::Tensor& x, const InputLayouts& layouts) {
  const auto& plain = layouts.plain;
  return plain.is_sharded() &&
      (plain.dim() + x.dim()) % x.dim() == features_dim(x, layouts);
}

// Checks the number of features: this rank's shard if they are sharded.
void check_features(
    const at::Tensor& x,
    const StyleMesh& where,
    const InputLayouts& layouts) {
  const auto& plain = layouts.plain;
  if (x.dim() == 0 || layouts.features == 0 ||
      !where.mesh.contains_this_rank() || plain.is_strided_shard()) {
    return;
  }
  const auto size = x.size(features_dim(x, layouts));
  const auto expected = shards_features(x, layouts)
      ? chunk(
            layouts.features,
            where.size(),
            where.mesh.get_local_rank(where.dim),
            plain.unit())
            .size()
      : layouts.features;
  DTENSOR_CHECK_VALUE(
      size == expected,
      "[boundary] the input of {}, {}, has {}, but this rank's local tensor of "
      "{} in {} should have {}. Set output_layouts of the preceding module to "
      "input_layouts of this module.",
      describe_module(ModuleScope::current()),
      shape_text(x.scalar_type(), x.sizes()),
      pluralize(size, "feature"),
      pluralize(layouts.features, "feature"),
      to_string(plain),
      expected);
}

// True if the style states the global number of features of `x`, so that ranks
// with uneven shards need not communicate.
bool has_global_size(const at::Tensor& x, const InputLayouts& layouts) {
  return x.dim() > 0 && layouts.features > 0 && shards_features(x, layouts);
}

FromLocalOptions known_shape(const at::Tensor& x, const InputLayouts& layouts) {
  FromLocalOptions options;
  if (has_global_size(x, layouts)) {
    options.shape = x.sizes().vec();
    options.shape->at(static_cast<size_t>(features_dim(x, layouts))) =
        layouts.features;
  }
  return options;
}

} // namespace

at::Tensor Converter::convert(const at::Tensor& x) const {
  return may_share(x) ? convert_shared(x) : redistribute(as_dtensor(x));
}

Conversion Converter::convert_for_region(const at::Tensor& x) const {
  if (may_share(x)) {
    return {.value = convert_shared(x)};
  }
  const c10::NoGradGuard no_grad;
  if (is_like_last(x)) {
    return {.origin = x, .from = last_.from, .value = convert_like_last(x)};
  }
  const auto distributed = as_dtensor(x);
  auto value = redistribute(distributed);
  const auto& from = spec_of(distributed);
  cache(x, from, spec_of(value));
  return {.origin = x, .from = from, .value = std::move(value)};
}

at::Tensor Converter::as_dtensor(const at::Tensor& x) const {
  if (is_dtensor(x)) {
    return x;
  }
  check_features(x, where_, layouts_);
  return from_local_lazy(
      x, where_.mesh, where_.alone(layouts_.plain), known_shape(x, layouts_));
}

// Redistributes the input to the layout in which the module computes.
at::Tensor Converter::redistribute(const at::Tensor& distributed) const {
  const auto& spec = spec_of(distributed);
  DTENSOR_CHECK_VALUE(
      spec->mesh() == where_.mesh,
      "[boundary] the input of {} is {}, but the module is parallelized on "
      "{}. Redistribute the input onto that mesh.",
      describe_module(ModuleScope::current()),
      *spec,
      where_.mesh);
  // The output is needed at once, but the gradient may stay in flight for a
  // while.
  return redistribute_autograd(
      distributed,
      spec->with_placements(
          where_.with(spec->placements(), layouts_.desired), "input_layouts"),
      {.async_backward = communicates_in_background(spec->mesh())});
}

// True if `x` can use the cached layouts. False for DTensors. False on a thread
// of another rank, so that the slow path throws its usual error.
bool Converter::is_like_last(const at::Tensor& x) const {
  return is_of_this_thread(where_.mesh) && last_.from != nullptr &&
      !is_dtensor(x) && x.layout() == at::kStrided &&
      x.device().type() == where_.mesh.device_type() &&
      x.scalar_type() == last_.from->dtype() &&
      x.sizes() == SizesRef(last_.sizes) &&
      x.strides() == SizesRef(last_.strides);
}

at::Tensor Converter::convert_like_last(const at::Tensor& x) const {
  record_converted_back(*last_.from);
  auto wrapped = wrap_counted(x, last_.from, x);
  if (last_.is_inferred) {
    const AssumedTensor noted(wrapped);
    note_inferred(*last_.from);
  }
  return last_.from == last_.to ? wrapped
                                : cast_and_redistribute(wrapped, last_.to);
}

// Caches that `x` became a DTensor in layout `from`, then in `to`.
void Converter::cache(
    const at::Tensor& x,
    const SpecPtr& from,
    const SpecPtr& to) const {
  if (is_of_this_thread(from->mesh()) && !is_dtensor(x) &&
      x.layout() == at::kStrided) {
    last_.sizes = x.sizes();
    last_.strides = x.strides();
    last_.from = from;
    last_.to = to;
    last_.is_inferred = !has_global_size(x, layouts_);
  }
}

void Converter::notify(ReplicaKind kind, const at::Tensor& x) const {
  notify_module_tensor(kind, x, where_, layouts_.plain);
}

void notify_module_tensor(
    ReplicaKind kind,
    const at::Tensor& x,
    const StyleMesh& where,
    const Placement& plain) {
  if (is_dtensor(x)) {
    const auto spec = spec_of(x);
    notify_replica_observers(
        {kind,
         x,
         spec->mesh(),
         spec->placements(),
         spec->mesh() == where.mesh ? where.dim : -1});
  } else if (x.defined()) {
    const auto placements = where.alone(plain);
    notify_replica_observers({kind, x, where.mesh, placements, where.dim});
  }
}

std::string describe_module(std::string_view name) {
  return name.empty() ? "the root module"
                      : "module \"" + std::string(name) + "\"";
}

} // namespace dtensor::detail

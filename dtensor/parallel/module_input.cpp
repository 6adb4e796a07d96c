// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/module_input_impl.h>

#include <dtensor/error.h>
#include <dtensor/layout/shard_math.h>
#include <dtensor/layout/text.h>
#include <dtensor/parallel/layout_boundary_impl.h>
#include <dtensor/redistribute/execute.h>
#include <dtensor/tensor/autograd_impl.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/wrap_impl.h>

namespace dtensor::detail {
namespace {

// Checks the size of the last dimension: this rank's shard if the features are
// sharded.
void check_features(
    const at::Tensor& x,
    const StyleMesh& where,
    const InputLayouts& layouts) {
  const auto& plain = layouts.plain;
  if (x.dim() == 0 || layouts.features == 0 ||
      !where.mesh.contains_this_rank() || plain.is_strided_shard()) {
    return;
  }
  const bool cut =
      plain.is_sharded() && (plain.dim() + x.dim()) % x.dim() == x.dim() - 1;
  const auto expected = cut ? chunk(
                                  layouts.features,
                                  where.size(),
                                  where.mesh.get_local_rank(where.dim),
                                  plain.unit())
                                  .size()
                            : layouts.features;
  DTENSOR_CHECK_VALUE(
      x.size(-1) == expected,
      "[boundary] the input of {}, {}, has {} features, but this rank's local "
      "tensor of {} features in {} has {}. Set output_layouts of the "
      "preceding module to input_layouts of this module.",
      describe_module(ModuleScope::current()),
      shape_text(x.scalar_type(), x.sizes()),
      x.size(-1),
      layouts.features,
      to_string(plain),
      expected);
}

} // namespace

// Supplies the global number of features, which the module has, so that ranks
// with uneven shards need not communicate.
FromLocalOptions known_shape(const at::Tensor& x, const InputLayouts& layouts) {
  FromLocalOptions options;
  const auto& plain = layouts.plain;
  const bool cuts_features = x.dim() > 0 && plain.is_sharded() &&
      (plain.dim() == -1 || plain.dim() == x.dim() - 1);
  if (cuts_features && layouts.features > 0) {
    options.shape = x.sizes().vec();
    options.shape->back() = layouts.features;
  }
  return options;
}

at::Tensor as_dtensor(
    const at::Tensor& x,
    const StyleMesh& where,
    const InputLayouts& layouts) {
  if (!is_dtensor(x)) {
    check_features(x, where, layouts);
  }
  return is_dtensor(x)
      ? x
      : from_local_lazy(
            x, where.mesh, where.alone(layouts.plain), known_shape(x, layouts));
}

at::Tensor prepare(
    const at::Tensor& distributed,
    const StyleMesh& where,
    const InputLayouts& layouts) {
  const auto& spec = spec_of(distributed);
  DTENSOR_CHECK_VALUE(
      spec->mesh() == where.mesh,
      "[boundary] the input of {} is {}, but the module is parallelized on "
      "{}. Redistribute the input onto that mesh.",
      describe_module(ModuleScope::current()),
      *spec,
      where.mesh);
  // The output is needed at once, but the gradient may stay in flight for a
  // while.
  return redistribute_autograd(
      distributed,
      spec->with_placements(
          where.with(spec->placements(), layouts.desired), "input_layouts"),
      {.async_backward = communicates_in_background(spec->mesh())});
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

} // namespace dtensor::detail

// SPDX-License-Identifier: BSD-3-Clause
// Views that change the shape. A sharding is kept if every rank's elements, in
// their order, are those of a layout of the new shape.
#include <dtensor/ops/dim_map.h>
#include <dtensor/ops/registry.h>

#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/local_kernels_impl.h>

#include <string>

namespace dtensor {
namespace {

std::string as_code(const Placement& p) {
  const auto unit =
      p.unit() == 1 ? std::string() : ", " + std::to_string(p.unit());
  switch (p.kind()) {
    case Placement::Kind::kReplicate:
      return "Replicate()";
    case Placement::Kind::kShard:
      return "Shard(" + std::to_string(p.dim()) + unit + ")";
    case Placement::Kind::kStridedShard:
      return "StridedShard(" + std::to_string(p.dim()) + ", " +
          std::to_string(p.split_factor()) + unit + ")";
    case Placement::Kind::kPartial:
      return "Partial(\"" + std::string(to_string(p.reduce_op())) + "\")";
  }
  return "";
}

std::string as_code(PlacementsRef placements) {
  std::string text;
  for (const auto& p : placements) {
    text += (text.empty() ? "" : ", ") + as_code(p);
  }
  return "[" + text + "]";
}

[[noreturn]] void
refuse_view(const OpCall& call, const ViewLayout& layout, SizesRef to) {
  const auto& input = call.inputs[0];
  const auto lost = layout.lost_mesh_dim;
  const auto& sharding = input.placement(lost);
  const bool may_be_heads = sharding.dim() == input.spec->dim() - 1 &&
      static_cast<int64_t>(to.size()) > input.spec->dim();
  DTENSOR_THROW(
      "[{}] cannot keep the sharding of {} as {}: the shards of dim {} on mesh "
      "dim {} do not correspond to shards of any dim of the new shape. "
      "Redistribute the input to {} first.{}",
      call.name(),
      *input.spec,
      at::IntArrayRef(to),
      sharding.dim(),
      call.mesh.dim_label(lost),
      as_code(layout.inputs),
      may_be_heads ? " If the dim contains heads, shard between heads: set "
                     "`multiple_of` of ColwiseParallel to the features of a "
                     "head."
                   : "");
}

// Chooses the layout that the view keeps. Only gradients may be redistributed,
// because the caller of backward() cannot redistribute them before.
MeshStrategy view_rule(const OpCall& call) {
  const auto& input = call.inputs[0];
  const auto& to = call.outputs[0].sizes;
  auto layout = view_layout(
      input.sizes(), to, call.mesh.shape(), input.spec->placements());
  if (layout.lost_mesh_dim >= 0 && !call.in_backward) {
    refuse_view(call, layout, to);
  }
  return {{std::move(layout.outputs)}, {std::move(layout.inputs)}};
}

// Returns the strategies of a view of the same bytes as another dtype. The last
// dimension changes its size unless the dtypes have equal size. Partial values
// must be reduced in the old dtype.
Strategies view_dtype_rule(const OpCall& call, int64_t) {
  const auto& input = call.inputs[0];
  Strategies strategies;
  for (int64_t d = 0; d < input.dim(); ++d) {
    const auto at = static_cast<size_t>(d);
    if (d + 1 < input.dim() || call.outputs[0].sizes[at] == input.sizes()[at]) {
      strategies.push_back({{Shard(d)}, {Shard(d)}});
    }
  }
  return strategies;
}

// Returns the strategies of views of complex numbers as pairs, which add a last
// dimension or drop it. Sums of pairs are pairs of sums.
Strategies complex_view_rule(const OpCall& call, int64_t mesh_dim) {
  auto map = identity_map(call.inputs[0].dim());
  if (call.outputs[0].dim() < call.inputs[0].dim()) {
    map.back() = -1;
  }
  return linear_move_strategies(call, mesh_dim, map);
}

} // namespace

DTENSOR_RULES(view) {
  rules.mesh_rule("view", view_rule)
      .with_local_kernel(detail::boxed(detail::view_local))
      .depends_on_backward()
      .with_traits({.size_arg = "size"});
  for (const auto* name : {"_unsafe_view", "_reshape_alias", "view_copy"}) {
    rules.mesh_rule(name, view_rule)
        .with_local_kernel(detail::boxed(detail::reshape_local))
        .depends_on_backward();
  }
  rules.dim_rule("view.dtype", view_dtype_rule);
  rules.dim_rule("view_as_real", complex_view_rule);
  rules.dim_rule("view_as_complex", complex_view_rule);
}

} // namespace dtensor

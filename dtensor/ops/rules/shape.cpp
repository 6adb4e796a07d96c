// SPDX-License-Identifier: BSD-3-Clause
// Operators that move, add, drop or repeat complete dimensions, and views that
// change the shape. Each of the former is a map of dimensions. To roll or flip
// a sharded dimension, ranks exchange rows.
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/dim_map.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/local_kernels_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/rules/shapes_impl.h>

#include <c10/core/WrapDimMinimal.h>

#include <algorithm>
#include <string>

namespace dtensor {

namespace {

using namespace detail;

int64_t self_dim(const OpCall& call, std::string_view arg) {
  return call.dim_arg(arg, call.inputs[0].dim());
}

DimMap transpose_map(const OpCall& call) {
  auto map = identity_map(call.inputs[0].dim());
  if (!map.empty()) {
    std::swap(
        map[static_cast<size_t>(self_dim(call, "dim0"))],
        map[static_cast<size_t>(self_dim(call, "dim1"))]);
  }
  return map;
}

DimMap t_map(const OpCall& call) {
  auto map = identity_map(call.inputs[0].dim());
  std::ranges::reverse(map);
  return map;
}

DimMap permute_map(const OpCall& call) {
  const auto ndim = call.inputs[0].dim();
  DimMap map(static_cast<size_t>(ndim), -1);
  int64_t out = 0;
  for (const auto dim : call.ints_arg("dims")) {
    map[static_cast<size_t>(c10::maybe_wrap_dim(dim, ndim))] = out++;
  }
  return map;
}

DimMap unsqueeze_map(const OpCall& call) {
  auto map = identity_map(call.inputs[0].dim());
  const auto added = call.dim_arg("dim", call.inputs[0].dim() + 1);
  for (auto& out : map) {
    out += out >= added ? 1 : 0;
  }
  return map;
}

DimMap squeeze_map(const OpCall& call) {
  return map_without(
      call.inputs[0].dim(),
      squeezed(call.inputs[0].sizes(), call.ints_arg("dim")));
}

// Passes the dimensions of global size 1 to the local call, because a local
// size may be 1 although the global size is not.
void squeeze_global_ones(const OpCall& call, Decision& decision) {
  decision.args.emplace_back(
      call.arg_index("dim"),
      squeezed(call.inputs[0].sizes(), call.ints_arg("dim")));
}

// Returns the map of expand. New dimensions, and expanded dimensions of size 1,
// are equal on every rank.
DimMap expand_map(const OpCall& call) {
  const auto& in = call.inputs[0].sizes();
  const auto& out = call.outputs[0].sizes;
  const auto added = out.size() - in.size();
  DimMap map;
  for (size_t d = 0; d < in.size(); ++d) {
    const auto to = static_cast<int64_t>(d + added);
    map.push_back(in[d] == out[d + added] ? to : -1);
  }
  return map;
}

DimMap repeat_map(const OpCall& call) {
  const auto repeats = call.ints_arg("repeats");
  const auto ndim = static_cast<size_t>(call.inputs[0].dim());
  const auto added = repeats.size() - ndim;
  DimMap map;
  for (size_t d = 0; d < ndim; ++d) {
    const auto to = static_cast<int64_t>(d + added);
    map.push_back(repeats[d + added] == 1 ? to : -1);
  }
  return map;
}

// Returns the strategies of an operator that moves the rows of dimensions
// "dims". The rows may be sharded.
Strategies moved_rows(const OpCall& call, int64_t mesh_dim) {
  const auto map = without_dims(call, "dims");
  auto strategies = move_strategies(call, mesh_dim, map);
  const auto& self = call.inputs[0];
  for (int64_t d = 0; d < self.dim(); ++d) {
    if (map[static_cast<size_t>(d)] < 0 && has_ranges(self, mesh_dim, d)) {
      const auto& now = self.placement(mesh_dim);
      strategies.push_back({{now}, {now}});
    }
  }
  return strategies;
}

// Returns the strategies of roll. Without dims the flattened tensor is rolled.
Strategies roll_rule(const OpCall& call, int64_t mesh_dim) {
  const auto ndim = static_cast<size_t>(call.inputs[0].dim());
  return call.ints_arg("dims").empty()
      ? move_strategies(call, mesh_dim, DimMap(ndim, -1))
      : moved_rows(call, mesh_dim);
}

// Returns true if LibTorch's roll keeps the strides of channels-last tensors:
// it concatenates slices, and an empty slice has no memory format.
bool keeps_channels_last(const OpCall& call) {
  const auto& self = call.inputs[0];
  const auto shifts = call.ints_arg("shifts");
  const auto dims = call.ints_arg("dims");
  if (dims.empty() || dims.size() != shifts.size()) {
    return false;
  }
  for (size_t i = 0; i < dims.size(); ++i) {
    const auto dim =
        c10::maybe_wrap_dim(dims[i], self.dim(), /*wrap_scalar=*/false);
    if (shifts[i] % self.spec->sizes()[static_cast<size_t>(dim)] == 0) {
      return false;
    }
  }
  return true;
}

// The result of roll is contiguous or channels-last.
std::vector<OutputMeta> roll_meta(const OpCall& call) {
  auto out = like_first_input(call);
  const at::IntArrayRef sizes = out[0].sizes;
  const at::IntArrayRef strides = out[0].strides;
  if (call.inputs[0].spec->numel() == 0) {
    return out;
  }
  const bool keeps = keeps_channels_last(call);
  if (keeps && c10::is_channels_last_strides_2d(sizes, strides)) {
    out[0].strides = Sizes(SizesRef(c10::get_channels_last_strides_2d(sizes)));
  } else if (keeps && c10::is_channels_last_strides_3d(sizes, strides)) {
    out[0].strides = Sizes(SizesRef(c10::get_channels_last_strides_3d(sizes)));
  } else {
    out[0].strides = dtensor::contiguous_strides(out[0].sizes);
  }
  return out;
}

void note_rolled_rows(const OpCall& call, Decision& decision) {
  note_moved_rows(call, decision, without_dims(call, "dims"));
}

// Returns the map of unfold; the windows are a new last dimension.
DimMap unfold_map(const OpCall& call) {
  return without_dims(call, "dimension");
}

// Returns the map of diagonal; the diagonal is a new last dimension that
// replaces the two.
DimMap diagonal_map(const OpCall& call) {
  return map_without(
      call.inputs[0].dim(), {self_dim(call, "dim1"), self_dim(call, "dim2")});
}

// Returns the map of diag_embed, which replaces the last dimension by two.
DimMap diag_embed_map(const OpCall& call) {
  const auto ndim = call.inputs[0].dim();
  const auto undo = map_without(
      ndim + 1,
      {call.dim_arg("dim1", ndim + 1), call.dim_arg("dim2", ndim + 1)});
  return inverse(undo, ndim);
}

// Returns the strategies of diag_embed. The operator adds zeros, which only
// sums ignore.
Strategies diag_embed_rule(const OpCall& call, int64_t mesh_dim) {
  return linear_move_strategies(call, mesh_dim, diag_embed_map(call));
}

// Views that change the shape. A sharding is kept if every rank's elements, in
// their order, are those of a layout of the new shape.

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

DTENSOR_RULES(shape) {
  rules.dim_rule("transpose.int", mapped(transpose_map))
      .with_traits({.keeps_boundary = true});
  rules.dim_rule("transpose_", mapped(transpose_map));
  rules.dim_rule("t", mapped(t_map)).with_traits({.keeps_boundary = true});
  rules.dim_rule("permute", mapped(permute_map));
  rules.dim_rule("unsqueeze", mapped(unsqueeze_map));
  rules.dim_rule("squeeze.dims", mapped(squeeze_map))
      .with_localize(squeeze_global_ones);
  rules.dim_rule("expand", mapped(expand_map))
      .with_traits({.size_arg = "size"});
  rules.dim_rule("repeat", mapped(repeat_map))
      .with_traits({.gradient_from_sizes_only = true});
  rules.dim_rule("flip", moved_rows)
      .with_meta(like_first_input)
      .with_localize(note_rolled_rows)
      .with_local_kernel(boxed(flip_local));
  rules.dim_rule("roll", roll_rule)
      .with_meta(roll_meta)
      .with_localize(note_rolled_rows)
      .with_local_kernel(boxed(roll_local));
  rules.dim_rule("unfold", mapped(unfold_map));
  rules.dim_rule("diagonal", mapped(diagonal_map));
  rules.dim_rule("diagonal_copy", mapped(diagonal_map));
  rules.dim_rule("diag_embed", diag_embed_rule);
  rules.keep_composite("rot90");
}

DTENSOR_RULES(view) {
  rules.mesh_rule("view", view_rule)
      .with_local_kernel(boxed(view_local))
      .depends_on_backward()
      .with_traits({.size_arg = "size"});
  for (const auto* name : {"_unsafe_view", "_reshape_alias", "view_copy"}) {
    rules.mesh_rule(name, view_rule)
        .with_local_kernel(boxed(reshape_local))
        .depends_on_backward();
  }
  rules.dim_rule("view.dtype", view_dtype_rule);
  rules.dim_rule("view_as_real", complex_view_rule);
  rules.dim_rule("view_as_complex", complex_view_rule);
}

} // namespace dtensor

// SPDX-License-Identifier: BSD-3-Clause
// Slicing, its gradients, and writes of slices. The sliced dimension is
// unsharded, or consists of blocks (rules/shapes_impl.h) that the slice does
// not divide. The other dimensions may be sharded.
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/dim_map.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/rules/shapes_impl.h>

#include <algorithm>
#include <limits>

namespace dtensor {
namespace {

using namespace detail;

constexpr int64_t kEnd = std::numeric_limits<int64_t>::max();

// Range that slice arguments select in a dimension of `size`.
struct SliceRange {
  int64_t begin;
  int64_t end;
  int64_t step;

  bool is_all(int64_t size) const {
    return begin == 0 && end == size && step == 1;
  }
};

SliceRange slice_range(const OpCall& call, int64_t size) {
  const auto bound = [&](const char* name, int64_t otherwise) {
    const auto at = call.arg(name).isNone() ? otherwise : call.int_arg(name);
    return std::clamp<int64_t>(at < 0 ? at + size : at, 0, size);
  };
  const auto begin = bound("start", 0);
  return {begin, std::max(begin, bound("end", size)), call.int_arg("step")};
}

// Returns the sizes of the sliced tensor, which is the result of a gradient.
SizesRef sliced_sizes(const OpCall& call) {
  return call.has_arg("input_sizes") ? SizesRef(call.outputs[0].sizes)
                                     : call.inputs[0].sizes();
}

DimMap select_map(const OpCall& call) {
  const auto ndim = static_cast<int64_t>(sliced_sizes(call).size());
  return map_without(ndim, {call.dim_arg("dim", ndim)});
}

DimMap slice_map(const OpCall& call) {
  const auto sizes = sliced_sizes(call);
  const auto ndim = static_cast<int64_t>(sizes.size());
  auto map = identity_map(ndim);
  const auto along = static_cast<size_t>(call.dim_arg("dim", ndim));
  if (!slice_range(call, sizes[along]).is_all(sizes[along])) {
    map[along] = -1;
  }
  return map;
}

// Returns true if the slice of a dimension of size `size` consists of complete
// blocks of size `block_size`.
bool selects_blocks(const SliceRange& range, int64_t size, int64_t block_size) {
  return range.step == 1 && range.end > range.begin && size % block_size == 0 &&
      range.begin % block_size == 0 && range.end % block_size == 0;
}

// Returns the strategies of a slice, or of its gradient: zeros of the size of
// the sliced tensor, into which the gradient is written.
Strategies slice_rule(const OpCall& call, int64_t mesh_dim) {
  const auto& input = call.inputs[0];
  auto strategies = move_strategies(call, mesh_dim, slice_map(call));
  const auto along = call.dim_arg("dim", input.dim());
  const auto size = sliced_sizes(call)[static_cast<size_t>(along)];
  const auto range = slice_range(call, size);
  const auto blocks = blocks_of_dim(input, mesh_dim, along);
  if (blocks && !range.is_all(size) &&
      selects_blocks(range, size, blocks->size)) {
    const auto made = call.outputs[0].sizes[static_cast<size_t>(along)];
    strategies.push_back(
        {{in_blocks(along, made / blocks->size, *blocks)},
         {input.placement(mesh_dim)}});
  }
  return strategies;
}

// Converts the range to local positions. For a slice of the full dimension, the
// local range is the full local dimension. For a slice of blocks, it is this
// rank's shard of each block.
void localize_slice(const OpCall& call, Decision& decision) {
  const auto sizes = sliced_sizes(call);
  const auto along = call.dim_arg("dim", static_cast<int64_t>(sizes.size()));
  const auto size = sizes[static_cast<size_t>(along)];
  const auto range = slice_range(call, size);
  int64_t begin = 0;
  int64_t end = kEnd;
  if (!range.is_all(size)) {
    const auto blocks = local_blocks(decision.layout_of(call, 0), along);
    if (!blocks) {
      return;
    }
    begin = range.begin / blocks->global.size * blocks->local;
    end = range.end / blocks->global.size * blocks->local;
  }
  decision.args.emplace_back(call.arg_index("start"), begin);
  decision.args.emplace_back(call.arg_index("end"), end);
}

DimMap select_backward_map(const OpCall& call) {
  return inverse(select_map(call), call.inputs[0].dim());
}

DimMap diagonal_backward_map(const OpCall& call) {
  const auto ndim = call.outputs[0].dim();
  const auto forward = map_without(
      ndim, {call.dim_arg("dim1", ndim), call.dim_arg("dim2", ndim)});
  return inverse(forward, call.inputs[0].dim());
}

std::vector<OutputMeta> input_sizes_meta(const OpCall& call) {
  return {dense(call.ints_arg("input_sizes"), call.inputs[0].spec->dtype())};
}

Strategies unfold_backward_rule(const OpCall& call, int64_t mesh_dim) {
  const auto ndim = call.outputs[0].dim();
  auto map = identity_map(call.inputs[0].dim());
  map.back() = -1;
  map[static_cast<size_t>(call.dim_arg("dim", ndim))] = -1;
  // Windows overlap, so their gradients are summed.
  return linear_move_strategies(call, mesh_dim, map);
}

// Checks the global sizes of `src`. Shards of different sizes could fit on some
// ranks.
void check_scattered(const OpCall& call, const DimMap& map) {
  const auto& self = *call.inputs[0].spec;
  const auto& src = *call.inputs[1].spec;
  bool fits = true;
  for (size_t d = 0; d < map.size(); ++d) {
    fits = fits && map[d] < src.dim() &&
        (map[d] < 0 ||
         src.sizes()[static_cast<size_t>(map[d])] == self.sizes()[d]);
  }
  DTENSOR_CHECK(
      fits,
      "[{}] {} does not fit the slice of {}. Pass a tensor of the slice's "
      "shape.",
      call.name(),
      src,
      self);
}

// Returns the rule of copying `src` into a slice of self. The map is from the
// dimensions of self to those of src.
DimRule scattered(MakeMap make_map) {
  return [make_map](const OpCall& call, int64_t mesh_dim) {
    const auto map = make_map(call);
    check_scattered(call, map);
    Strategies strategies;
    for (size_t d = 0; d < map.size(); ++d) {
      if (map[d] >= 0) {
        const auto sharding = Shard(static_cast<int64_t>(d));
        strategies.push_back({{sharding}, {sharding, Shard(map[d])}});
      }
    }
    add_common_partial(call, mesh_dim, strategies);
    return strategies;
  };
}

} // namespace

DTENSOR_RULES(slicing) {
  rules.dim_rule("unbind.int", mapped(select_map));
  rules.dim_rule("select.int", mapped(select_map));
  rules.dim_rule("slice.Tensor", slice_rule)
      .with_localize(localize_slice)
      .with_traits({.boundary_follows_rows = true});
  rules.dim_rule("select_backward", mapped(select_backward_map))
      .with_traits({.size_arg = "input_sizes"});
  rules.dim_rule("slice_backward", slice_rule)
      .with_localize(localize_slice)
      .with_traits({.size_arg = "input_sizes"});
  rules.dim_rule("diagonal_backward", mapped(diagonal_backward_map))
      .with_traits({.size_arg = "input_sizes"});
  rules.dim_rule("unfold_backward", unfold_backward_rule)
      .with_meta(input_sizes_meta)
      .with_traits({.size_arg = "input_sizes"});
  rules.dim_rule("slice_scatter", scattered(slice_map))
      .with_localize(localize_slice)
      .depends_on_backward();
  rules.dim_rule("select_scatter", scattered(select_map)).depends_on_backward();
}

} // namespace dtensor

// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/rules/shapes_impl.h>

#include <dtensor/ops/rules/pointwise_impl.h>

#include <c10/core/WrapDimMinimal.h>

#include <algorithm>

namespace dtensor::detail {
namespace {

int64_t count_of(const Placement& sharding) {
  return sharding.is_strided_shard() ? sharding.split_factor() : 1;
}

} // namespace

bool is_sharded_alone(const OpInput& input, int64_t mesh_dim, int64_t dim) {
  const auto shardings = std::ranges::count_if(
      input.spec->placements(),
      [dim](const Placement& p) { return p.is_sharded(dim); });
  return shardings == 1 && input.placement(mesh_dim).is_sharded(dim);
}

std::optional<DimBlocks>
blocks_of_dim(const OpInput& input, int64_t mesh_dim, int64_t dim) {
  if (!is_sharded_alone(input, mesh_dim, dim)) {
    return std::nullopt;
  }
  const auto& mine = input.placement(mesh_dim);
  const auto size = input.sizes()[static_cast<size_t>(dim)];
  const auto count = count_of(mine);
  if (size == 0 || size % count != 0) {
    return std::nullopt;
  }
  return DimBlocks{count, size / count, mine.unit()};
}

bool has_ranges(const OpInput& input, int64_t mesh_dim, int64_t dim) {
  return is_sharded_alone(input, mesh_dim, dim) &&
      input.placement(mesh_dim).is_shard();
}

Placement in_blocks(int64_t dim, int64_t count, const DimBlocks& like) {
  const auto sharding = count == 1 ? Shard(dim) : StridedShard(dim, count);
  return sharding.with_unit(like.unit);
}

std::optional<LocalBlocks> local_blocks(const Spec& spec, int64_t dim) {
  const auto d = static_cast<size_t>(dim);
  for (const auto& p : spec.placements()) {
    if (p.is_sharded(dim) && spec.mesh().contains_this_rank()) {
      const auto count = count_of(p);
      return LocalBlocks{
          {count, spec.sizes()[d] / count, p.unit()},
          spec.local_sizes()[d] / count};
    }
  }
  return std::nullopt;
}

void add_common_partial(
    const OpCall& call,
    int64_t mesh_dim,
    Strategies& strategies) {
  const auto some = std::ranges::find_if(call.inputs, [&](const auto& in) {
    return in.placement(mesh_dim).is_partial();
  });
  if (some == call.inputs.end()) {
    return;
  }
  const auto& common = some->placement(mesh_dim);
  const bool fits = std::ranges::all_of(call.inputs, [&](const auto& in) {
    const auto& p = in.placement(mesh_dim);
    return (p == common || (p.is_replicate() && !in.is_plain)) &&
        keeps_partial_dtype(in.spec->dtype(), call.outputs[0].dtype);
  });
  if (fits) {
    strategies.push_back(
        {Placements(call.outputs.size(), common),
         Placements(call.inputs.size(), common)});
  }
}

std::vector<int64_t> squeezed(
    SizesRef sizes,
    const std::vector<int64_t>& dims) {
  const auto ndim = static_cast<int64_t>(sizes.size());
  std::vector<int64_t> ones;
  for (const auto given : dims) {
    const auto dim = c10::maybe_wrap_dim(given, ndim);
    if (ndim > 0 && sizes[static_cast<size_t>(dim)] == 1) {
      ones.push_back(dim);
    }
  }
  return ones;
}

DimRule mapped(MakeMap map) {
  return [map](const OpCall& call, int64_t mesh_dim) {
    return move_strategies(call, mesh_dim, map(call));
  };
}

DimMap without_dims(const OpCall& call, std::string_view dims_arg) {
  const auto ndim = call.inputs[0].dim();
  auto map = identity_map(ndim);
  for (const auto dim : call.ints_arg(dims_arg)) {
    if (ndim > 0) {
      map[static_cast<size_t>(c10::maybe_wrap_dim(dim, ndim))] = -1;
    }
  }
  return map;
}

DimMap map_without(int64_t ndim, const std::vector<int64_t>& dims) {
  DimMap map;
  int64_t out = 0;
  for (int64_t d = 0; d < ndim; ++d) {
    const bool drops = std::ranges::find(dims, d) != dims.end();
    map.push_back(drops ? -1 : out++);
  }
  return map;
}

DimMap inverse(const DimMap& map, int64_t ndim) {
  DimMap back(static_cast<size_t>(ndim), -1);
  for (size_t d = 0; d < map.size(); ++d) {
    if (map[d] >= 0) {
      back[static_cast<size_t>(map[d])] = static_cast<int64_t>(d);
    }
  }
  return back;
}

} // namespace dtensor::detail

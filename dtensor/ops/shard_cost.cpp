// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/shard_cost_impl.h>

#include <dtensor/redistribute/plan_impl.h>

#include <c10/core/ScalarType.h>

#include <algorithm>

namespace dtensor::detail {
namespace {

double bytes_each(at::ScalarType dtype) {
  return static_cast<double>(c10::elementSize(dtype));
}

bool contains(const std::vector<int64_t>& dims, int64_t dim) {
  return std::ranges::find(dims, dim) != dims.end();
}

bool shards_any(const Placement& p, const std::vector<int64_t>& dims) {
  return p.is_sharded() && contains(dims, p.dim());
}

double local_elements(const Spec& spec) {
  auto elements = static_cast<double>(spec.numel());
  for (int64_t m = 0; m < spec.mesh().ndim(); ++m) {
    if (spec.placements()[static_cast<size_t>(m)].is_sharded()) {
      elements /= static_cast<double>(spec.mesh().size(m));
    }
  }
  return elements;
}

// Returns the number of local elements that are reduced to one result.
double local_row_size(const Spec& spec, const std::vector<int64_t>& dims) {
  double size = 1;
  for (const auto dim : dims) {
    size *= static_cast<double>(spec.sizes()[static_cast<size_t>(dim)]);
  }
  for (int64_t m = 0; m < spec.mesh().ndim(); ++m) {
    if (shards_any(spec.placements()[static_cast<size_t>(m)], dims)) {
      size /= static_cast<double>(spec.mesh().size(m));
    }
  }
  return size;
}

bool can_shard_another(
    const Spec& spec,
    const std::vector<int64_t>& dims,
    int64_t ranks) {
  for (int64_t d = 0; d < spec.dim(); ++d) {
    if (!contains(dims, d) && spec.sizes()[static_cast<size_t>(d)] >= ranks) {
      return true;
    }
  }
  return false;
}

// Modelled times of collectives along one mesh dimension.
struct CollectiveTimes {
  LinkCost link;
  int64_t ranks;

  // Returns the time of a collective to which each rank passes `bytes`.
  int64_t of(CollectiveKind kind, double bytes) const {
    const bool gathers = kind == CollectiveKind::kAllGather;
    const double buffer = gathers ? bytes * static_cast<double>(ranks) : bytes;
    return picoseconds(link, wire_bytes(kind, ranks, buffer));
  }
};

// Returns the time to gather the shards of the reduced dimensions, or to move
// them to another dimension and back.
int64_t time_to_move(
    const OpCall& call,
    int64_t mesh_dim,
    const std::vector<int64_t>& dims,
    const Spec& shared,
    const CollectiveTimes& time) {
  int64_t gathers = 0;
  int64_t moves = 0;
  for (const auto& input : call.inputs) {
    if (shards_any(input.placement(mesh_dim), dims)) {
      const auto bytes =
          local_elements(*input.spec) * bytes_each(input.spec->dtype());
      gathers += time.of(CollectiveKind::kAllGather, bytes);
      moves += time.of(CollectiveKind::kAllToAll, bytes);
    }
  }
  for (const auto& output : call.outputs) {
    if (SizesRef(output.sizes) == shared.sizes()) {
      moves += time.of(
          CollectiveKind::kAllToAll,
          local_elements(shared) * bytes_each(output.dtype));
    }
  }
  return can_shard_another(shared, dims, time.ranks) ? std::min(gathers, moves)
                                                     : gathers;
}

} // namespace

int64_t largest_shard_of(const OpInput& input, int64_t mesh_dim, int64_t dim) {
  if (!input.placement(mesh_dim).is_sharded(dim)) {
    return 0;
  }
  const auto& mesh = input.spec->mesh();
  int64_t parts = 1;
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    parts *= input.placement(m).is_sharded(dim) ? mesh.size(m) : 1;
  }
  return (input.sizes()[static_cast<size_t>(dim)] + parts - 1) / parts;
}

bool shares_dim(const Spec& spec, int64_t dim) {
  for (int64_t m = 0; m < spec.mesh().ndim(); ++m) {
    if (spec.mesh().size(m) > 1 &&
        spec.placements()[static_cast<size_t>(m)].is_sharded(dim)) {
      return true;
    }
  }
  return false;
}

bool is_faster_on_shards(
    const OpCall& call,
    int64_t mesh_dim,
    const std::vector<int64_t>& dims,
    const StatisticsExchange& exchange) {
  const auto input = std::ranges::find_if(call.inputs, [&](const OpInput& in) {
    return shards_any(in.placement(mesh_dim), dims);
  });
  if (input == call.inputs.end() || input->spec->numel() == 0) {
    return false;
  }
  const auto& shared = *input->spec;
  const auto ranks = call.mesh.size(mesh_dim);
  const CollectiveTimes time{Links(call.mesh).over({mesh_dim}), ranks};
  const auto rows = local_elements(shared) / local_row_size(shared, dims);
  return ranks == 1 ||
      exchange.count * time.of(exchange.kind, rows * exchange.row_bytes) <
      time_to_move(call, mesh_dim, dims, shared, time);
}

} // namespace dtensor::detail

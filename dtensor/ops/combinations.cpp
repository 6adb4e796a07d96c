// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/combinations_impl.h>

#include <algorithm>
#include <functional>
#include <utility>

namespace dtensor::detail {
namespace {

// Returns false for a placement of a wrong rule. Spec refuses such a placement
// if it is chosen.
bool shards_dim_of(SizesRef sizes, const Placement& placement) {
  return placement.is_sharded() && placement.dim() >= 0 &&
      placement.dim() < static_cast<int64_t>(sizes.size());
}

// Returns `placement` as a spec of these sizes stores it, with the largest
// unit, if the earlier mesh dimensions have the placements `before`.
Placement as_stored(
    const OpCall& call,
    SizesRef sizes,
    PlacementsRef before,
    const Placement& placement) {
  if (placement.unit() == 1 || !shards_dim_of(sizes, placement)) {
    return placement;
  }
  Placements layout(before);
  layout.push_back(placement);
  return with_largest_units(sizes, call.mesh.shape(), std::move(layout)).back();
}

// Normalizes all placements of a strategy, so that equal shardings compare
// equal.
Strategy
as_stored(const OpCall& call, const MeshStrategy& before, Strategy strategy) {
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    auto& input = strategy.inputs[i];
    input = as_stored(call, call.inputs[i].sizes(), before.inputs[i], input);
  }
  for (size_t i = 0; i < call.outputs.size(); ++i) {
    auto& output = strategy.outputs[i];
    output = as_stored(call, call.outputs[i].sizes, before.outputs[i], output);
  }
  return strategy;
}

bool allowed(
    const OpCall& call,
    const Strategy& strategy,
    int64_t mesh_dim,
    const Constraints& constraints) {
  if (constraints.written_input < 0) {
    return true;
  }
  const auto written = static_cast<size_t>(constraints.written_input);
  const auto& now = call.inputs[written].placement(mesh_dim);
  return strategy.inputs[written] == now &&
      (strategy.outputs.empty() || strategy.outputs[0] == now);
}

bool differ_in_reduction(const Placement& a, const Placement& b) {
  return a.is_partial() && b.is_partial() && a != b;
}

bool mixes(const Placements& before, const Placement& next) {
  return std::ranges::any_of(
      before, [&](const Placement& p) { return differ_in_reduction(p, next); });
}

// Returns true if a layout would have two reductions. Their result would depend
// on the order in which they are applied.
bool mixes_reductions(const MeshStrategy& chosen, const Strategy& strategy) {
  const auto fits = std::not_fn(mixes);
  return !std::ranges::equal(chosen.inputs, strategy.inputs, fits) ||
      !std::ranges::equal(chosen.outputs, strategy.outputs, fits);
}

bool is_unreachable(const OpCall& call, const Strategy& s, int64_t mesh_dim) {
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    if (call.mesh.size(mesh_dim) > 1 &&
        differ_in_reduction(call.inputs[i].placement(mesh_dim), s.inputs[i])) {
      return true;
    }
  }
  return false;
}

// Returns true if all inputs are replicated on a mesh dimension, and the
// strategy changes an input there. Slicing inputs may save bytes on other mesh
// dimensions, but the program keeps its tensors unsharded on this mesh
// dimension.
bool shards_replicated(
    const OpCall& call,
    const Strategy& s,
    int64_t mesh_dim) {
  bool changes = false;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    if (!call.inputs[i].placement(mesh_dim).is_replicate()) {
      return false;
    }
    changes |= !s.inputs[i].is_replicate();
  }
  return changes;
}

// Returns true if mesh dimension `m` newly shards the input, and ranks then are
// empty because the layout shards this tensor dimension too often. Such a
// sharding is only chosen if nothing else is possible (for example for an
// in-place operator whose self already has this sharding).
bool leaves_ranks_empty(
    const OpInput& input,
    const Placements& layout,
    size_t m) {
  const Placement& to = layout[m];
  if (!shards_dim_of(input.sizes(), to) ||
      input.placement(static_cast<int64_t>(m)) == to) {
    return false;
  }
  int64_t parts = 1;
  for (size_t i = 0; i < layout.size(); ++i) {
    parts *= layout[i].is_sharded(to.dim())
        ? input.spec->mesh().size(static_cast<int64_t>(i))
        : 1;
  }
  return input.sizes()[static_cast<size_t>(to.dim())] <=
      (parts - 1) * to.unit();
}

// Updates a planned input for the next mesh dimensions. These then take into
// account the placement `to`, and that the input cannot keep another reduction
// beside it.
void plan(
    OpInput& input,
    int64_t mesh_dim,
    const Placement& to,
    const OpCall& call) {
  if (input.placement(mesh_dim) == to) {
    return;
  }
  Placements layout(input.spec->placements());
  for (auto& p : layout) {
    p = differ_in_reduction(p, to) ? Replicate() : p;
  }
  layout[static_cast<size_t>(mesh_dim)] = to;
  input.spec = input.spec->with_placements(layout, call.name().c_str());
}

} // namespace

Combinations::Combinations(
    const OpCall& call,
    const OpRule& rule,
    const Constraints& constraints)
    : call_(call),
      rule_(rule),
      constraints_(constraints),
      planned_(call) {
  chosen_.inputs.resize(call.inputs.size());
  chosen_.outputs.resize(call.outputs.size());
}

std::vector<Combinations::Option> Combinations::options() const {
  const auto mesh_dim = static_cast<int64_t>(size());
  std::vector<Option> options;
  for (auto& candidate : candidates(planned_, rule_, mesh_dim)) {
    auto strategy = as_stored(call_, chosen_, std::move(candidate));
    const auto feasibility = !allowed(call_, strategy, mesh_dim, constraints_)
        ? Feasibility::kChangesWritten
        : mixes_reductions(chosen_, strategy) ? Feasibility::kMixesReductions
        : is_unreachable(call_, strategy, mesh_dim) ? Feasibility::kUnreachable
        : shards_replicated(call_, strategy, mesh_dim)
        ? Feasibility::kShardsReplicated
        : Feasibility::kPossible;
    options.push_back({std::move(strategy), feasibility});
  }
  return options;
}

void Combinations::add(const Strategy& strategy) {
  for (size_t i = 0; i < chosen_.inputs.size(); ++i) {
    chosen_.inputs[i].push_back(strategy.inputs[i]);
  }
  for (size_t o = 0; o < chosen_.outputs.size(); ++o) {
    chosen_.outputs[o].push_back(strategy.outputs[o]);
  }
}

Combinations::Planned Combinations::plan_next() {
  Planned before;
  const auto mesh_dim = static_cast<int64_t>(size()) - 1;
  for (size_t i = 0; i < planned_.inputs.size(); ++i) {
    before.push_back(planned_.inputs[i].spec);
    plan(planned_.inputs[i], mesh_dim, chosen_.inputs[i].back(), call_);
  }
  return before;
}

void Combinations::restore(const Planned& before) {
  for (size_t i = 0; i < before.size(); ++i) {
    planned_.inputs[i].spec = before[i];
  }
}

void Combinations::remove() {
  for (auto& input : chosen_.inputs) {
    input.pop_back();
  }
  for (auto& output : chosen_.outputs) {
    output.pop_back();
  }
}

Rank Combinations::rank() const {
  Rank rank;
  for (size_t i = 0; i < chosen_.inputs.size(); ++i) {
    const Placements& layout = chosen_.inputs[i];
    for (size_t m = 0; m < layout.size(); ++m) {
      const bool changes =
          call_.inputs[i].placement(static_cast<int64_t>(m)) != layout[m];
      rank.changes += changes ? 1 : 0;
      rank.last_resorts +=
          changes && leaves_ranks_empty(call_.inputs[i], layout, m) ? 1 : 0;
    }
  }
  for (const Placements& layout : chosen_.outputs) {
    rank.not_sharded += static_cast<int>(std::ranges::count_if(
        layout, [](const Placement& p) { return !p.is_sharded(); }));
  }
  return rank;
}

} // namespace dtensor::detail

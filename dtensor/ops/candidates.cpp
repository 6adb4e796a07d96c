// SPDX-License-Identifier: BSD-3-Clause
// Strategies among which the rule of a call may choose.
#include <dtensor/ops/propagate_impl.h>

#include <dtensor/error.h>
#include <dtensor/ops/propagate.h>

#include <algorithm>
#include <utility>

namespace dtensor {
namespace {

// Returns the inputs' placements on this mesh dimension that shard, but not as
// Shard without units; with tensor dimension 0.
Placements other_cuts(const OpCall& call, int64_t mesh_dim) {
  Placements cuts;
  for (const auto& input : call.inputs) {
    const auto cut = input.placement(mesh_dim).with_dim(0);
    if (cut.is_sharded() && !cut.is_chunk() &&
        std::find(cuts.begin(), cuts.end(), cut) == cuts.end()) {
      cuts.push_back(cut);
    }
  }
  return cuts;
}

// Replaces every Shard by `cut` on the same tensor dimension.
Strategy with_cut(Strategy strategy, const Placement& cut) {
  const auto change = [&](Placements& placements) {
    for (auto& p : placements) {
      if (p.is_shard()) {
        p = cut.with_dim(p.dim());
      }
    }
  };
  change(strategy.outputs);
  change(strategy.inputs);
  return strategy;
}

// Returns true if `cut` may replace the Shards of the strategy. A rule that
// lists other sharding placements itself defines how they combine.
bool may_replace_shards(const Strategy& s) {
  const auto count = [&](bool (Placement::*is)() const) {
    const auto found = [is](const Placement& p) { return (p.*is)(); };
    return std::count_if(s.inputs.begin(), s.inputs.end(), found) +
        std::count_if(s.outputs.begin(), s.outputs.end(), found);
  };
  const auto chunks = count(&Placement::is_chunk);
  return chunks > 0 && chunks == count(&Placement::is_sharded);
}

Strategy replicated(const OpCall& call) {
  Strategy s;
  s.outputs.resize(call.outputs.size(), Replicate());
  s.inputs.resize(call.inputs.size(), Replicate());
  return s;
}

// Checks the number of layouts of a Strategy or MeshStrategy. Programs write
// rules, too.
template <class AnyStrategy>
void check_fits(const OpCall& call, const AnyStrategy& strategy) {
  DTENSOR_CHECK_VALUE(
      strategy.inputs.size() == call.inputs.size() &&
          strategy.outputs.size() == call.outputs.size(),
      "[{}] its rule gives layouts for {} and {}, but the call has {} and {}. "
      "Return one layout for each tensor, including each tensor of a list.",
      call.name(),
      detail::pluralize(strategy.inputs.size(), "input"),
      detail::pluralize(strategy.outputs.size(), "output"),
      call.inputs.size(),
      call.outputs.size());
}

} // namespace

Strategies
candidates(const OpCall& call, const OpRule& rule, int64_t mesh_dim) {
  Strategies all;
  if (rule.dim_rule) {
    all = rule.dim_rule(call, mesh_dim);
  }
  for (const auto& s : all) {
    check_fits(call, s);
  }
  const auto plain = all.size();
  for (const auto& cut : other_cuts(call, mesh_dim)) {
    for (size_t i = 0; i < plain && (rule.strided || cut.is_shard()); ++i) {
      if (may_replace_shards(all[i])) {
        all.push_back(with_cut(all[i], cut));
      }
    }
  }
  auto whole = replicated(call);
  if (std::find(all.begin(), all.end(), whole) == all.end()) {
    all.push_back(std::move(whole));
  }
  return all;
}

MeshStrategy detail::mesh_candidate(const OpCall& call, const OpRule& rule) {
  auto chosen = rule.mesh_rule(call);
  check_fits(call, chosen);
  return chosen;
}

} // namespace dtensor

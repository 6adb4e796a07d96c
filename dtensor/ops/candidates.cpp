// SPDX-License-Identifier: BSD-3-Clause
// Strategies among which the rule of a call may choose.
#include <dtensor/ops/propagate_impl.h>

#include <dtensor/error.h>
#include <dtensor/ops/propagate.h>

#include <algorithm>
#include <utility>

namespace dtensor {
namespace {

// Returns the inputs' placements on this mesh dimension that shard in another
// way than a Shard without unit. The tensor dimension is replaced by 0.
Placements other_shardings(const OpCall& call, int64_t mesh_dim) {
  Placements shardings;
  for (const auto& input : call.inputs) {
    const auto sharding = input.placement(mesh_dim).with_dim(0);
    if (sharding.is_sharded() && !sharding.is_chunk() &&
        std::ranges::find(shardings, sharding) == shardings.end()) {
      shardings.push_back(sharding);
    }
  }
  return shardings;
}

// Replaces every Shard by `sharding` on the same tensor dimension.
Strategy with_sharding(Strategy strategy, const Placement& sharding) {
  const auto change = [&](Placements& placements) {
    for (auto& p : placements) {
      if (p.is_shard()) {
        p = sharding.with_dim(p.dim());
      }
    }
  };
  change(strategy.outputs);
  change(strategy.inputs);
  return strategy;
}

// Returns true if `sharding` may replace the Shards of the strategy. A rule
// that lists other sharding placements itself defines how they combine.
bool may_replace_shards(const Strategy& s) {
  const auto count = [&](bool (Placement::*is)() const) {
    const auto found = [is](const Placement& p) { return (p.*is)(); };
    return std::ranges::count_if(s.inputs, found) +
        std::ranges::count_if(s.outputs, found);
  };
  const auto chunks = count(&Placement::is_chunk);
  return chunks > 0 && chunks == count(&Placement::is_sharded);
}

// Returns true for a strategy of a rule that expects a vector, if the operand
// has one element and no dimensions.
bool shards_0d_input(const OpCall& call, const Strategy& s) {
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    if (call.inputs[i].dim() == 0 && s.inputs[i].is_sharded()) {
      return true;
    }
  }
  return false;
}

Strategy replicated(const OpCall& call) {
  Strategy s;
  s.outputs.resize(call.outputs.size(), Replicate());
  s.inputs.resize(call.inputs.size(), Replicate());
  return s;
}

// Checks the number of layouts of a Strategy or MeshStrategy, because programs
// write rules, too.
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
  std::erase_if(
      all, [&](const Strategy& s) { return shards_0d_input(call, s); });
  const auto plain = all.size();
  for (const auto& sharding : other_shardings(call, mesh_dim)) {
    for (size_t i = 0; i < plain && (rule.strided || sharding.is_shard());
         ++i) {
      if (may_replace_shards(all[i])) {
        all.push_back(with_sharding(all[i], sharding));
      }
    }
  }
  auto all_replicated = replicated(call);
  if (std::ranges::find(all, all_replicated) == all.end()) {
    all.push_back(std::move(all_replicated));
  }
  return all;
}

MeshStrategy detail::mesh_candidate(const OpCall& call, const OpRule& rule) {
  auto chosen = rule.mesh_rule(call);
  check_fits(call, chosen);
  return chosen;
}

} // namespace dtensor

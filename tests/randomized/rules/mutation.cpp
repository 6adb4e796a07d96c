// SPDX-License-Identifier: BSD-3-Clause
#include "mutation.h"

#include <ATen/ATen.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/path/op_info_impl.h>
#include <dtensor/ops/register_sharding.h>
#include <dtensor/ops/registry.h>

#include <algorithm>

namespace dtensor::randomized {
namespace {

bool has_numbers(const Trial& trial, size_t output) {
  const auto& values = trial.truth.no_grad.values;
  return !detail::OpInfo(trial.call.op).in_place && output < values.size() &&
      values[output].defined() &&
      at::count_nonzero(values[output]).item().toBool();
}

} // namespace

Strategy Mutation::mutant() const {
  Strategy changed = strategy;
  auto& placement = changed.outputs[output];
  placement = placement.is_replicate() ? Placement(Partial()) : Replicate();
  return changed;
}

std::string Mutation::text() const {
  return c10::str(
      to_string(strategy.inputs),
      " -> ",
      to_string(strategy.outputs),
      ", result ",
      output,
      " as ",
      to_string(mutant().outputs[output]));
}

std::vector<Mutation> mutations_of(
    const std::vector<Trial>& trials,
    const ProofSettings& settings) {
  std::vector<Mutation> mutations;
  for (const auto& trial : trials) {
    for (const auto& strategy : tried_strategies(trial, settings)) {
      for (size_t output = 0; output < strategy.outputs.size(); ++output) {
        const Mutation mutation{strategy, output};
        if (has_numbers(trial, output) &&
            std::ranges::find(mutations, mutation) == mutations.end()) {
          mutations.push_back(mutation);
        }
      }
    }
  }
  return mutations;
}

void apply_mutation(const std::string& op, const Mutation& mutation) {
  OpRule rule = *RuleRegistry::global().find(parse_operator_name(op));
  rule.dim_rule = [right = rule.dim_rule, mutation](
                      const OpCall& call, int64_t mesh_dim) {
    auto strategies = right(call, mesh_dim);
    std::ranges::replace(strategies, mutation.strategy, mutation.mutant());
    return strategies;
  };
  register_sharding(op, std::move(rule));
}

} // namespace dtensor::randomized

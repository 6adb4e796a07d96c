// SPDX-License-Identifier: BSD-3-Clause
#include "broken.h"

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

Strategy Break::broken() const {
  Strategy changed = strategy;
  auto& placement = changed.outputs[output];
  placement = placement.is_replicate() ? Placement(Partial()) : Replicate();
  return changed;
}

std::string Break::text() const {
  return c10::str(
      to_string(strategy.inputs),
      " -> ",
      to_string(strategy.outputs),
      ", result ",
      output,
      " as ",
      to_string(broken().outputs[output]));
}

std::vector<Break> breaks_of(
    const std::vector<Trial>& trials,
    const ProofSettings& settings) {
  std::vector<Break> breaks;
  for (const auto& trial : trials) {
    for (const auto& strategy : tried_strategies(trial, settings)) {
      for (size_t output = 0; output < strategy.outputs.size(); ++output) {
        const Break change{strategy, output};
        if (has_numbers(trial, output) &&
            std::ranges::find(breaks, change) == breaks.end()) {
          breaks.push_back(change);
        }
      }
    }
  }
  return breaks;
}

void break_rule(const std::string& op, const Break& change) {
  OpRule rule = *RuleRegistry::global().find(parse_operator_name(op));
  rule.dim_rule = [right = rule.dim_rule, change](
                      const OpCall& call, int64_t mesh_dim) {
    auto strategies = right(call, mesh_dim);
    std::ranges::replace(strategies, change.strategy, change.broken());
    return strategies;
  };
  register_sharding(op, std::move(rule));
}

} // namespace dtensor::randomized

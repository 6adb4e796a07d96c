// SPDX-License-Identifier: BSD-3-Clause
// Calls of operators with rules, on operands of random layouts.
#pragma once

#include "tests/ops/rule_calls.h"

#include <dtensor/ops/path/op_info_impl.h>
#include <dtensor/ops/path/stack_impl.h>
#include <dtensor/ops/registry.h>

#include <random>
#include <utility>
#include <vector>

namespace dtensor::testing {

inline Placements
draw_layout(const DeviceMesh& mesh, int64_t ndim, std::mt19937& random) {
  Placements layout;
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    const auto kind = random() % 8;
    layout.push_back(
        kind < 2                ? Placement(Partial())
            : kind < 4 || !ndim ? Placement(Replicate())
                                : Shard(static_cast<int64_t>(random()) % ndim));
  }
  return layout;
}

/// Returns the call with operands of random layouts.
inline OpCall draw_call(
    const detail::OpInfo& info,
    const PlainCall& plain,
    const DeviceMesh& mesh,
    std::mt19937& random) {
  std::vector<OpInput> inputs;
  detail::visit_tensors(
      plain.arguments, [&](const at::Tensor& t, size_t arg, int item) {
        inputs.push_back(
            {Spec::make(
                 mesh,
                 draw_layout(mesh, t.dim(), random),
                 Sizes(t.sizes().begin(), t.sizes().end()),
                 t.scalar_type()),
             static_cast<int>(arg),
             item});
      });
  OpCall call(info.op.schema(), plain.arguments, mesh, std::move(inputs));
  call.outputs = metas_of(plain.results);
  call.in_backward = random() % 2 == 0;
  return call;
}

/// Returns the operators whose rule lists strategies.
inline std::vector<detail::OpInfo> operators_with_strategies() {
  std::vector<detail::OpInfo> operators;
  for (const auto& name : RuleRegistry::global().names()) {
    const auto op =
        c10::Dispatcher::singleton().findSchema(parse_operator_name(name));
    if (op && name.starts_with("aten::")) {
      const detail::OpInfo info(*op);
      if (info.rule != nullptr && info.rule->dim_rule) {
        operators.push_back(info);
      }
    }
  }
  return operators;
}

} // namespace dtensor::testing

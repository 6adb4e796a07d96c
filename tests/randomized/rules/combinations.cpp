// SPDX-License-Identifier: BSD-3-Clause
#include "combinations.h"

#include "tests/ops/output_meta.h"

#include <dtensor/layout/text.h>
#include <dtensor/ops/path/stack_impl.h>
#include <dtensor/ops/propagate.h>

#include <algorithm>

namespace dtensor::randomized {
namespace {

std::vector<Placement> choices_of(const at::Tensor& t, int64_t ranks) {
  std::vector<Placement> choices;
  if (t.unsafeGetTensorImpl()->is_wrapped_number()) {
    return choices;
  }
  for (int64_t d = 0; d < t.dim(); ++d) {
    const auto chunk = (t.size(d) + ranks - 1) / ranks;
    if (chunk * (ranks - 1) < t.size(d)) {
      choices.push_back(Shard(d));
    }
  }
  if (t.is_floating_point() || t.is_complex()) {
    choices.push_back(Partial(ReduceOp::kSum));
  }
  return choices;
}

DeviceMesh mesh_without_world(int64_t ranks) {
  return parse_spec(c10::str("f32[1] on (", ranks, "): R")).spec()->mesh();
}

OpCall op_call_of(
    const Call& call,
    const Truth& truth,
    const Combination& combination,
    int64_t ranks) {
  const auto mesh = mesh_without_world(ranks);
  std::vector<OpInput> inputs;
  detail::visit_tensors(
      call.arguments, [&](const at::Tensor& t, size_t arg, int item) {
        const auto& given = combination.at(inputs.size());
        const auto layout = given.empty() ? Placements{Replicate()} : given;
        inputs.push_back(
            {Spec::make(mesh, layout, t.sizes(), t.strides(), t.scalar_type()),
             static_cast<int>(arg),
             item,
             given.empty()});
      });
  OpCall result(call.op.schema(), call.arguments, mesh, std::move(inputs));
  for (const auto& value : truth.no_grad.values) {
    result.outputs.push_back(testing::meta_of_result(value));
  }
  return result;
}

} // namespace

std::vector<Combination>
placements_of(const Truth& truth, int64_t ranks, size_t limit) {
  Combination replicated;
  for (const auto& t : truth.operands) {
    replicated.push_back(
        t.unsafeGetTensorImpl()->is_wrapped_number() ? Placements()
                                                     : Placements{Replicate()});
  }
  std::vector<Combination> all = {replicated};
  for (size_t next = 0; next < all.size() && all.size() <= limit; ++next) {
    // Extends a combination only behind its last changed operand, so that each
    // combination appears once.
    const auto& base = all[next];
    size_t first = base.size();
    while (first > 0 &&
           (base[first - 1].empty() || base[first - 1][0].is_replicate())) {
      --first;
    }
    for (size_t i = first; i < replicated.size(); ++i) {
      for (const auto& choice : choices_of(truth.operands[i], ranks)) {
        auto changed = all[next];
        changed[i] = {choice};
        all.push_back(std::move(changed));
      }
    }
  }
  all.erase(all.begin());
  all.resize(std::min(all.size(), limit));
  return all;
}

Placements one_dim(const Combination& combination) {
  Placements layout;
  for (const auto& given : combination) {
    layout.push_back(given.empty() ? Replicate() : given[0]);
  }
  return layout;
}

Strategies strategies_with(
    const Call& call,
    const Truth& truth,
    const OpRule& rule,
    const Combination& combination,
    int64_t ranks) {
  Strategies found;
  try {
    found = rule.dim_rule(op_call_of(call, truth, combination, ranks), 0);
  } catch (const c10::Error&) {
    return {};
  }
  std::erase_if(found, [layout = one_dim(combination)](const Strategy& s) {
    return s.inputs != layout;
  });
  return found;
}

bool keeps_layouts(
    const Call& call,
    const Truth& truth,
    const OpRule& rule,
    const Combination& combination,
    int64_t ranks) {
  try {
    const auto op_call = op_call_of(call, truth, combination, ranks);
    return !propagate(op_call, rule, {}).redistributes;
  } catch (const c10::Error&) {
    return false;
  }
}

} // namespace dtensor::randomized

// SPDX-License-Identifier: BSD-3-Clause
// All layouts, or a sample of layouts, and their plans, for tests.
#pragma once

#include <dtensor/layout/spec.h>
#include <dtensor/redistribute/plan.h>

#include <random>
#include <vector>

namespace dtensor::testing {

/// Returns all valid lists of `mesh_ndim` placements out of `kinds`.
inline std::vector<Placements> all_layouts(
    size_t mesh_ndim,
    const std::vector<Placement>& kinds) {
  std::vector<Placements> layouts{{}};
  for (size_t i = 0; i < mesh_ndim; ++i) {
    std::vector<Placements> longer;
    for (const Placements& layout : layouts) {
      for (const Placement& kind : kinds) {
        longer.push_back(layout);
        longer.back().push_back(kind);
      }
    }
    layouts = std::move(longer);
  }
  const auto is_max = [](const Placement& p) {
    return p.is_partial(ReduceOp::kMax);
  };
  std::erase_if(layouts, [&](const Placements& layout) {
    bool max = false;
    bool other = false;
    for (const Placement& p : layout) {
      max |= is_max(p);
      other |= p.is_partial() && !is_max(p);
    }
    return max && other;
  });
  return layouts;
}

struct Pair {
  Placements from;
  Placements to;
};

inline std::vector<Pair> all_pairs(const std::vector<Placements>& layouts) {
  std::vector<Pair> pairs;
  for (const Placements& from : layouts) {
    for (const Placements& to : layouts) {
      pairs.push_back({from, to});
    }
  }
  return pairs;
}

/// Returns `count` pairs, which are the same in every run.
inline std::vector<Pair> some_pairs(
    const std::vector<Placements>& layouts,
    size_t count) {
  std::mt19937 random(7);
  std::vector<Pair> pairs;
  for (size_t i = 0; i < count; ++i) {
    const Placements& from = layouts[random() % layouts.size()];
    pairs.push_back({from, layouts[random() % layouts.size()]});
  }
  return pairs;
}

/// True if ranks may send more or fewer bytes in a step than the plan counts.
/// Such a step is an all_to_all that changes more than a single mesh dimension.
inline bool sends_unevenly(const std::vector<Step>& steps) {
  for (const Step& step : steps) {
    Placements after = step.before;
    const auto own = static_cast<size_t>(step.mesh_dims[0]);
    after[own] = step.after[own];
    if (step.kind == StepKind::kAllToAll &&
        (step.mesh_dims.size() > 1 || after != step.after)) {
      return true;
    }
  }
  return false;
}

} // namespace dtensor::testing

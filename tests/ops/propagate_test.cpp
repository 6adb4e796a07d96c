// SPDX-License-Identifier: BSD-3-Clause
// Compares the choice of propagate() with an exhaustive search over the
// combinations of strategies, for random calls of all operators with rules.
#include "tests/ops/random_calls.h"

#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/layout/shard_math.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/combinations_impl.h>
#include <dtensor/testing/fake_world.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>

namespace dtensor::testing {
namespace TEST_SOURCE {

using detail::ChoiceCost;
using detail::OpInfo;
using detail::Picoseconds;
using detail::Rank;

std::string text_of(const OpCall& call, const MeshStrategy& layouts) {
  std::string text = call.name() + " of";
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    text += " " + to_string(*call.inputs[i].spec) + " as " +
        to_string(layouts.inputs[i]);
  }
  return text;
}

bool differ(const Placement& a, const Placement& b) {
  return a.is_partial() && b.is_partial() && a != b;
}

// Makes all combinations, without bounds, and keeps the first in the order that
// propagate.h states.
class Exhaustive {
 public:
  Exhaustive(
      const OpCall& call,
      const OpRule& rule,
      const Constraints& constraints)
      : call_(call),
        rule_(rule),
        written_(constraints.written_input),
        cost_(call) {
    layouts_.inputs.resize(call.inputs.size());
    layouts_.outputs.resize(call.outputs.size());
    visit(call, {});
  }

  const std::optional<Rank>& best() const {
    return best_;
  }
  const MeshStrategy& layouts() const {
    return best_layouts_;
  }
  int combinations() const {
    return combinations_;
  }
  // Combinations whose lower bound was above their time.
  const std::string& errors() const {
    return errors_;
  }

 private:
  bool is_feasible(const Strategy& s, size_t m) const {
    const auto was_whole = [&](const OpInput& input) {
      return input.spec->placements()[m].is_replicate();
    };
    const auto is_whole = [](const Placement& p) { return p.is_replicate(); };
    if (std::all_of(call_.inputs.begin(), call_.inputs.end(), was_whole) &&
        !std::all_of(s.inputs.begin(), s.inputs.end(), is_whole)) {
      return false;
    }
    for (size_t i = 0; i < s.inputs.size(); ++i) {
      const auto& now = call_.inputs[i].spec->placements()[m];
      bool fits = !differ(now, s.inputs[i]) &&
          (static_cast<int>(i) != written_ || now == s.inputs[i]);
      for (const auto& earlier : layouts_.inputs[i]) {
        fits &= !differ(earlier, s.inputs[i]);
      }
      if (!fits) {
        return false;
      }
    }
    for (size_t o = 0; o < s.outputs.size(); ++o) {
      for (const auto& earlier : layouts_.outputs[o]) {
        if (differ(earlier, s.outputs[o])) {
          return false;
        }
      }
    }
    return written_ < 0 || s.outputs.empty() ||
        s.outputs[0] == call_.inputs[0].spec->placements()[m];
  }

  OpCall planned(OpCall before, const Strategy& s, size_t m) const {
    for (size_t i = 0; i < s.inputs.size(); ++i) {
      Placements layout(before.inputs[i].spec->placements());
      for (auto& p : layout) {
        p = differ(p, s.inputs[i]) ? Placement(Replicate()) : p;
      }
      layout[m] = s.inputs[i];
      before.inputs[i].spec = before.inputs[i].spec->with_placements(layout);
    }
    return before;
  }

  // Returns the strategy as the layouts of specs store it, with the largest
  // units: S(1, u=4) of 8 elements on 2 ranks is S(1).
  Strategy stored(Strategy s) const {
    const auto last = [&](SizesRef sizes, Placements layout, Placement& p) {
      layout.push_back(p);
      p = with_largest_units(sizes, call_.mesh.shape(), layout).back();
    };
    for (size_t i = 0; i < s.inputs.size(); ++i) {
      last(call_.inputs[i].sizes(), layouts_.inputs[i], s.inputs[i]);
    }
    for (size_t o = 0; o < s.outputs.size(); ++o) {
      last(call_.outputs[o].sizes, layouts_.outputs[o], s.outputs[o]);
    }
    return s;
  }

  void visit(const OpCall& call, const c10::SmallVector<size_t, 4>& order) {
    const size_t m = order.size();
    if (m == static_cast<size_t>(call_.mesh.ndim())) {
      compare(order);
      return;
    }
    const auto options = candidates(call, rule_, static_cast<int64_t>(m));
    for (size_t option = 0; option < options.size(); ++option) {
      const Strategy s = stored(options[option]);
      if (!is_feasible(s, m)) {
        continue;
      }
      const MeshStrategy before = layouts_;
      for (size_t i = 0; i < layouts_.inputs.size(); ++i) {
        layouts_.inputs[i].push_back(s.inputs[i]);
      }
      for (size_t o = 0; o < layouts_.outputs.size(); ++o) {
        layouts_.outputs[o].push_back(s.outputs[o]);
      }
      bounds_.push_back(cost_.at_least(layouts_));
      auto with = order;
      with.push_back(option);
      visit(planned(call, s, m), with);
      bounds_.pop_back();
      layouts_ = before;
    }
  }

  int last_resorts() const {
    int count = 0;
    for (size_t i = 0; i < layouts_.inputs.size(); ++i) {
      const auto& spec = *call_.inputs[i].spec;
      for (size_t m = 0; m < layouts_.inputs[i].size(); ++m) {
        const auto& to = layouts_.inputs[i][m];
        int64_t parts = 1;
        for (size_t k = 0; k < layouts_.inputs[i].size(); ++k) {
          parts *= to.is_sharded() && layouts_.inputs[i][k].is_sharded(to.dim())
              ? spec.mesh().shape()[k]
              : 1;
        }
        count += to.is_sharded() && to != spec.placements()[m] &&
                spec.sizes()[static_cast<size_t>(to.dim())] <=
                    (parts - 1) * to.unit()
            ? 1
            : 0;
      }
    }
    return count;
  }

  void compare(const c10::SmallVector<size_t, 4>& order) {
    Rank rank;
    rank.last_resorts = last_resorts();
    rank.time = cost_.of(layouts_);
    rank.order = order;
    for (size_t i = 0; i < layouts_.inputs.size(); ++i) {
      for (size_t m = 0; m < order.size(); ++m) {
        rank.changes +=
            layouts_.inputs[i][m] != call_.inputs[i].spec->placements()[m] ? 1
                                                                           : 0;
      }
    }
    for (const auto& output : layouts_.outputs) {
      for (const auto& p : output) {
        rank.not_sharded += p.is_sharded() ? 0 : 1;
      }
    }
    for (const auto bound : bounds_) {
      if (bound > rank.time) {
        errors_ += text_of(call_, layouts_) + "\n";
      }
    }
    ++combinations_;
    if (!best_ || rank < *best_) {
      best_ = rank;
      best_layouts_ = layouts_;
    }
  }

  const OpCall& call_;
  const OpRule& rule_;
  int written_;
  ChoiceCost cost_;
  MeshStrategy layouts_;
  std::vector<Picoseconds> bounds_;
  std::optional<Rank> best_;
  MeshStrategy best_layouts_;
  int combinations_ = 0;
  std::string errors_;
};

void expect_optimal(
    const OpCall& call,
    const OpRule& rule,
    const Constraints& constraints) {
  int64_t failed = 0;
  const auto chosen = detail::choose_layouts(call, rule, constraints, failed);
  const Exhaustive all(call, rule, constraints);
  EXPECT_EQ(all.errors(), "");
  ASSERT_EQ(chosen.has_value(), all.best().has_value()) << call.name();
  if (chosen) {
    EXPECT_EQ(chosen->taken, all.best()->order)
        << text_of(call, chosen->layouts)
        << "\nbest: " << text_of(call, all.layouts()) << "\n"
        << all.best()->time << " ps";
  }
}

DeviceMesh mesh_of(const std::vector<int64_t>& shape, const LinkCost& link) {
  std::vector<std::string> names;
  MeshOptions options;
  for (size_t m = 0; m < shape.size(); ++m) {
    names.push_back(c10::str("m", m));
    options.cost[names.back()] = link;
  }
  return init_device_mesh(at::kCPU, shape, names, options);
}

class Propagate : public ::testing::TestWithParam<std::vector<int64_t>> {};

// Uses costs for which small tensors are limited by latency, or by bandwidth.
TEST_P(Propagate, TakesTheBestOfAllCombinations) {
  constexpr int kCalls = 200;
  const auto& shape = GetParam();
  with_fake_world(0, c10::multiply_integers(shape), [&] {
    const auto operators = operators_with_strategies();
    const DeviceMesh meshes[] = {
        mesh_of(shape, {2, 10}), mesh_of(shape, {0.01, 0.01})};
    std::mt19937 random(7);
    for (int i = 0; i < kCalls; ++i) {
      const auto& info = operators[random() % operators.size()];
      const auto plain = plain_call_of(info.op);
      const auto call = draw_call(info, plain, meshes[random() % 2], random);
      const bool writes = random() % 4 == 0 && !call.outputs.empty() &&
          call.outputs[0].sizes == Sizes(call.inputs[0].sizes());
      expect_optimal(call, *info.rule, {.written_input = writes ? 0 : -1});
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Meshes,
    Propagate,
    ::testing::Values(
        std::vector<int64_t>{2},
        std::vector<int64_t>{4},
        std::vector<int64_t>{2, 2},
        std::vector<int64_t>{2, 4},
        std::vector<int64_t>{2, 2, 2}));

} // namespace TEST_SOURCE
} // namespace dtensor::testing

// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/program/operand_layouts_impl.h>

#include <dtensor/layout/spec_impl.h>
#include <dtensor/redistribute/plan.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace dtensor::detail {
namespace {

// Maximum number of layouts for which all orders are tried. More layouts are
// rare, and the number of orders grows factorially.
constexpr size_t kMostWanted = 4;

// Compares lexicographically: modelled time, then collectives.
using Cost = std::pair<double, int64_t>;

Cost cost_of(const SpecPtr& from, const SpecPtr& to) {
  const auto steps = plan(from, to);
  return {steps->microseconds, steps->collectives()};
}

Cost sum(const Cost& a, const Cost& b) {
  return {a.first + b.first, a.second + b.second};
}

// Returns the layout of the gradient of a value in layout `spec`. Each rank has
// the full gradient of a sum, so partial becomes replicated.
SpecPtr gradient_of(const SpecPtr& spec) {
  return spec->with_placements(without_partial(spec->placements()));
}

class Routes {
 public:
  Routes(
      const SpecPtr& from,
      const std::vector<SpecPtr>& wanted,
      bool both_ways)
      : layouts_(wanted) {
    layouts_.push_back(from);
    for (const auto& a : layouts_) {
      auto& row = costs_.emplace_back();
      for (const auto& b : layouts_) {
        row.push_back(cost_of(a, b));
        if (both_ways) {
          row.back() = sum(row.back(), cost_of(gradient_of(b), gradient_of(a)));
        }
      }
    }
  }

  // Tries all orders. Each layout is made from the nearest earlier layout.
  std::vector<SpecPtr> best() const {
    std::vector<size_t> order(layouts_.size() - 1);
    std::iota(order.begin(), order.end(), 0);
    std::vector<size_t> found;
    Cost least = {std::numeric_limits<double>::infinity(), 0};
    do {
      const auto parents = parents_in(order);
      Cost cost;
      for (const auto i : order) {
        cost = sum(cost, costs_[parents[i]][i]);
      }
      if (cost < least) {
        least = cost;
        found = parents;
      }
    } while (std::next_permutation(order.begin(), order.end()));
    std::vector<SpecPtr> route;
    for (size_t i = 0; i != layouts_.size() - 1; i = found[i]) {
      route.push_back(layouts_[i]);
    }
    std::ranges::reverse(route);
    return route;
  }

 private:
  std::vector<size_t> parents_in(const std::vector<size_t>& order) const {
    std::vector<size_t> parents(order.size());
    std::vector<size_t> made = {layouts_.size() - 1};
    for (const auto i : order) {
      parents[i] = *std::ranges::min_element(
          made, [&](auto a, auto b) { return costs_[a][i] < costs_[b][i]; });
      made.push_back(i);
    }
    return parents;
  }

  std::vector<SpecPtr> layouts_; // the last is the value's own layout
  std::vector<std::vector<Cost>> costs_;
};

} // namespace

std::vector<SpecPtr> cheapest_route(
    const SpecPtr& from,
    const std::vector<SpecPtr>& wanted,
    bool both_ways) {
  if (wanted.size() == 1 || wanted.size() > kMostWanted) {
    return {wanted[0]};
  }
  return Routes(from, wanted, both_ways).best();
}

} // namespace dtensor::detail

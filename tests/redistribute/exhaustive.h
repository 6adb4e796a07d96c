// SPDX-License-Identifier: BSD-3-Clause
// Exhaustive search for the cheapest sequence of steps between layouts. The
// search uses only the sets of elements that ranks hold, and tries every step
// between every two layouts.
#pragma once

#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/layout/cost.h>
#include <dtensor/layout/spec.h>
#include <dtensor/layout/text.h>
#include <tests/redistribute/layouts.h>

#include <algorithm>
#include <bitset>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace dtensor::testing {

using Cost = std::pair<int64_t, int64_t>; // picoseconds, collectives

class Exhaustive {
 public:
  Exhaustive(
      const DeviceMesh& mesh,
      const Sizes& sizes,
      std::vector<LinkCost> links,
      const std::vector<Placement>& kinds)
      : mesh_(mesh),
        links_(std::move(links)) {
    const auto ndim = static_cast<size_t>(mesh.ndim());
    for (const Placements& placements : all_layouts(ndim, kinds)) {
      if (!is_strided_in_place(placements)) {
        continue;
      }
      const auto spec = Spec::make(mesh, placements, sizes, at::kFloat);
      if (std::find(layouts_.begin(), layouts_.end(), spec) == layouts_.end()) {
        layouts_.push_back(spec);
        held_.push_back(held_in(*spec));
      }
    }
    make_groups();
    for (size_t a = 0; a < layouts_.size(); ++a) {
      for (size_t b = 0; b < layouts_.size(); ++b) {
        if (const auto cost = a == b ? std::nullopt : step_cost(a, b)) {
          steps_.resize(layouts_.size());
          steps_[a].push_back({b, *cost});
        }
      }
    }
  }

  const std::vector<SpecPtr>& layouts() const {
    return layouts_;
  }

  /// The cheapest paths from one layout to all others.
  struct Paths {
    std::vector<Cost> costs;
    std::vector<size_t> previous; // layout before the last step
  };

  /// `with_partial`: paths may pass through Partial placements.
  Paths from(size_t start, bool with_partial) const {
    Paths paths{
        std::vector<Cost>(
            layouts_.size(), {std::numeric_limits<int64_t>::max(), 0}),
        std::vector<size_t>(layouts_.size(), start)};
    auto& costs = paths.costs;
    std::set<std::pair<Cost, size_t>> open{{{0, 0}, start}};
    costs[start] = {0, 0};
    while (!open.empty()) {
      const auto [cost, at] = *open.begin();
      open.erase(open.begin());
      for (const auto& [next, step] : steps_[at]) {
        const Cost sum{cost.first + step.first, cost.second + step.second};
        if (sum < costs[next] && (with_partial || !has_partial(next))) {
          open.erase({costs[next], next});
          costs[next] = sum;
          paths.previous[next] = at;
          open.insert({sum, next});
        }
      }
    }
    return paths;
  }

  bool has_partial(size_t layout) const {
    const auto placements = layouts_[layout]->placements();
    return std::any_of(
        placements.begin(), placements.end(), [](const Placement& p) {
          return p.is_partial();
        });
  }

  /// Prints the layouts on the path to `goal`, and their costs.
  std::string text_of(const Paths& paths, size_t start, size_t goal) const {
    std::string text;
    for (size_t at = goal; at != start; at = paths.previous[at]) {
      text = " -> " + to_string(layouts_[at]->placements()) + " (" +
          std::to_string(paths.costs[at].first) + " ps)" + text;
    }
    return to_string(layouts_[start]->placements()) + text;
  }

 private:
  using Elements = std::bitset<128>;
  using Held = std::vector<Elements>; // by rank

  Held held_in(const Spec& spec) const {
    Held held;
    for (int64_t rank = 0; rank < mesh_.size(); ++rank) {
      const auto coordinate = mesh_.coordinate_of(rank);
      const auto along = [&](int64_t dim) {
        return local_intervals(
            spec.sizes()[static_cast<size_t>(dim)],
            dim,
            mesh_.shape(),
            spec.placements(),
            coordinate);
      };
      Elements& mine = held.emplace_back();
      for (const Interval& rows : along(0)) {
        for (const Interval& columns : along(1)) {
          for (int64_t i = rows.begin; i < rows.end; ++i) {
            for (int64_t j = columns.begin; j < columns.end; ++j) {
              mine.set(static_cast<size_t>(i * spec.sizes()[1] + j));
            }
          }
        }
      }
    }
    return held;
  }

  // True if split factors are products of the sizes of mesh dimensions further
  // right.
  bool is_strided_in_place(const Placements& placements) const {
    std::set<int64_t> products;
    for (size_t i = placements.size(); i-- > 0;) {
      const Placement& p = placements[i];
      if (p.is_strided_shard() && products.count(p.split_factor()) == 0) {
        return false;
      }
      const int64_t size = mesh_.shape()[i];
      for (const int64_t product : std::set<int64_t>(products)) {
        products.insert(product * size);
      }
      products.insert(size);
    }
    return true;
  }

  // Makes, for each set of mesh dims, the ranks that differ from a rank only
  // there.
  void make_groups() {
    const auto ndim = static_cast<size_t>(mesh_.ndim());
    for (size_t set = 0; set < size_t{1} << ndim; ++set) {
      auto& groups = groups_.emplace_back();
      for (int64_t rank = 0; rank < mesh_.size(); ++rank) {
        auto& group = groups.emplace_back();
        for (int64_t other = 0; other < mesh_.size(); ++other) {
          const auto a = mesh_.coordinate_of(rank);
          const auto b = mesh_.coordinate_of(other);
          bool is_member = true;
          for (size_t i = 0; i < ndim; ++i) {
            is_member &= (set >> i & 1) != 0 || a[i] == b[i];
          }
          if (is_member) {
            group.push_back(static_cast<size_t>(other));
          }
        }
      }
    }
  }

  Elements of_group(const Held& held, size_t set, size_t rank) const {
    Elements all;
    for (const size_t member : groups_[set][rank]) {
      all |= held[member];
    }
    return all;
  }

  // True if, in layout `parts`, the ranks of each group hold, without overlap,
  // the elements that each of them holds in `whole`.
  bool splits(const Held& whole, const Held& parts, size_t set) const {
    for (size_t rank = 0; rank < whole.size(); ++rank) {
      size_t count = 0;
      for (const size_t member : groups_[set][rank]) {
        count += parts[member].count();
      }
      if (of_group(parts, set, rank) != whole[rank] ||
          count != whole[rank].count()) {
        return false;
      }
    }
    return true;
  }

  static int64_t largest(const Held& held) {
    size_t most = 0;
    for (const Elements& mine : held) {
      most = std::max(most, mine.count());
    }
    return static_cast<int64_t>(most);
  }

  template <typename Is>
  bool all_on(size_t layout, size_t set, Is is) const {
    const auto placements = layouts_[layout]->placements();
    for (size_t i = 0; i < placements.size(); ++i) {
      if ((set >> i & 1) != 0 && !is(placements[i])) {
        return false;
      }
    }
    return true;
  }

  Cost price(CollectiveKind kind, size_t set, int64_t elements) const {
    LinkCost link{0, std::numeric_limits<double>::infinity()};
    for (size_t i = 0; i < links_.size(); ++i) {
      if ((set >> i & 1) != 0) {
        link.latency_us = std::max(link.latency_us, links_[i].latency_us);
        link.gigabytes_per_s =
            std::min(link.gigabytes_per_s, links_[i].gigabytes_per_s);
      }
    }
    const auto n = static_cast<double>(groups_[set][0].size());
    const double rounds =
        kind == CollectiveKind::kAllReduce ? 2 * (n - 1) : n - 1;
    const double bytes = rounds * static_cast<double>(elements) * 4 / n;
    return {
        std::llround(link.latency_us * 1e6) +
            std::llround(bytes * 1e3 / link.gigabytes_per_s),
        1};
  }

  // Returns the cost of the cheapest single step between two layouts.
  std::optional<Cost> step_cost(size_t a, size_t b) const {
    std::optional<Cost> best;
    for (size_t set = 1; set < groups_.size(); ++set) {
      const auto cost = cost_over(a, b, set);
      if (cost && (!best || *cost < *best)) {
        best = cost;
      }
    }
    return best;
  }

  std::optional<Cost> cost_over(size_t a, size_t b, size_t set) const {
    const auto is_r = [](const Placement& p) { return p.is_replicate(); };
    const auto is_p = [](const Placement& p) { return p.is_partial(); };
    const auto is_s = [](const Placement& p) { return p.is_sharded(); };
    if (all_on(a, set, is_s) && can_exchange(a, b, set)) {
      return exchange_cost(a, b, set);
    }
    if (!stays_elsewhere(a, b, set)) {
      return std::nullopt;
    }
    const Held& from = held_[a];
    const Held& to = held_[b];
    const bool splits_up = all_on(b, set, is_s) && splits(from, to, set);
    if (all_on(a, set, is_p)) {
      if (all_on(b, set, is_r)) {
        return price(CollectiveKind::kAllReduce, set, largest(from));
      }
      return splits_up
          ? std::optional(
                price(CollectiveKind::kReduceScatter, set, largest(from)))
          : std::nullopt;
    }
    const bool is_local =
        (all_on(a, set, is_r) && (all_on(b, set, is_p) || splits_up)) ||
        (all_on(a, set, is_s) && all_on(b, set, is_p) && splits(to, from, set));
    return is_local ? std::optional(Cost{0, 0}) : std::nullopt;
  }

  bool stays_elsewhere(size_t a, size_t b, size_t set) const {
    for (size_t i = 0; i < links_.size(); ++i) {
      if ((set >> i & 1) == 0 &&
          layouts_[a]->placements()[i] != layouts_[b]->placements()[i]) {
        return false;
      }
    }
    return true;
  }

  // True if the ranks over `set` together hold in layout `a` all elements that
  // they hold in layout `b`. Other mesh dimensions may become sharded.
  bool can_exchange(size_t a, size_t b, size_t set) const {
    for (size_t i = 0; i < links_.size(); ++i) {
      const Placement& p = layouts_[a]->placements()[i];
      const Placement& next = layouts_[b]->placements()[i];
      const bool may_change = (set >> i & 1) != 0
          ? !next.is_partial()
          : p.is_replicate() && next.is_sharded();
      if (p != next && !may_change) {
        return false;
      }
    }
    for (size_t rank = 0; rank < held_[b].size(); ++rank) {
      if ((held_[b][rank] & ~of_group(held_[a], set, rank)).any()) {
        return false;
      }
    }
    return true;
  }

  Cost exchange_cost(size_t a, size_t b, size_t set) const {
    const bool is_permutation = stays_elsewhere(a, b, set) &&
        all_on(b, set, [](const Placement& p) { return p.is_sharded(); });
    return price(
        CollectiveKind::kAllToAll, set, largest(held_[is_permutation ? a : b]));
  }

  DeviceMesh mesh_;
  std::vector<LinkCost> links_;
  std::vector<SpecPtr> layouts_;
  std::vector<Held> held_;
  std::vector<std::vector<std::vector<size_t>>> groups_;
  std::vector<std::vector<std::pair<size_t, Cost>>> steps_;
};

} // namespace dtensor::testing

// SPDX-License-Identifier: BSD-3-Clause
// Search for the cheapest path between two layouts: A* with the bounds of
// LeastTime.
#include <dtensor/redistribute/plan_impl.h>

#include <dtensor/layout/text.h>
#include <dtensor/redistribute/layouts_impl.h>
#include <dtensor/redistribute/least_time_impl.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <compare>
#include <functional>
#include <limits>
#include <queue>

namespace dtensor::detail {
namespace {

// The cost of a path, compared lexicographically as in plan().
struct Cost {
  int64_t picoseconds = std::numeric_limits<int64_t>::max();
  int64_t collectives = 0;
  int64_t steps = 0;
  auto operator<=>(const Cost&) const = default;
};

class Search {
 public:
  Search(const SearchSpace& space, PlacementsRef from, PlacementsRef to)
      : space_(space),
        options_(space.options),
        goal_placements_(to),
        movable_(movable_dims(options_)),
        sets_(joinable_sets(space, movable_)),
        layouts_(space),
        start_(layouts_.number_of(from)),
        goal_(layouts_.number_of(to)),
        nodes_(layouts_.size()),
        least_time_(
            space.frame,
            space.item_size,
            space.links.fastest(space.frame.mesh_shape)) {}

  std::vector<Step> run() {
    relax(start_, start_, {0, 0, 0}, StepKind::kSlice, 0);
    while (!queue_.empty()) {
      const Entry entry = queue_.top();
      queue_.pop();
      if (entry.number == goal_) {
        return path();
      }
      if (entry.cost == nodes_[entry.number].cost) {
        expand(entry.number);
      }
    }
    TORCH_INTERNAL_ASSERT(
        false,
        "redistribute: no path from ",
        to_string(layouts_.placements_of(start_)),
        " to ",
        to_string(goal_placements_),
        " for ",
        space_.frame.sizes,
        " on ",
        space_.frame.mesh_shape);
  }

 private:
  struct Node {
    Cost cost;
    size_t previous = 0;
    StepKind kind = StepKind::kSlice; // of the step from `previous`
    size_t set = 0;                   // mesh dimensions of that step
    int64_t time_left = -1;           // a lower bound; negative if unknown
    int64_t longer = 0;               // that of paths of several collectives
  };

  struct Entry {
    int64_t bound = 0; // least time of a path through this layout
    Cost cost;
    size_t number = 0;
    auto operator<=>(const Entry&) const = default;
  };

  // Tries first the collectives after which local steps suffice. Their cost
  // limits the search.
  void expand(size_t number) {
    const Placements before = layouts_.placements_of(number);
    is_last_ = true;
    try_collectives(number, before);
    for (size_t d = 0; d < movable_.size(); ++d) {
      try_local_steps(number, before, d);
    }
    const Node& node = nodes_[number];
    if (node.cost.picoseconds + node.longer <= nodes_[goal_].cost.picoseconds) {
      is_last_ = false;
      try_collectives(number, before);
    }
  }

  // True if a collective may leave this placement on mesh dimension `i`.
  bool is_useful(size_t i, const Placement& placement) const {
    return !is_last_ || is_local_change(placement, goal_placements_[i]);
  }

  void try_collectives(size_t number, const Placements& before) {
    for (size_t set = 0; set < sets_.size(); ++set) {
      if (!may_improve(goal_, number, set)) {
        continue;
      }
      const auto& dims = sets_[set].dims;
      const auto all = [&](auto predicate) {
        return std::ranges::all_of(dims, [&](int64_t i) {
          return predicate(before[static_cast<size_t>(i)]);
        });
      };
      if (all([](const Placement& p) { return p.is_partial(); })) {
        try_reductions(number, set);
      } else if (all([](const Placement& p) { return p.is_sharded(); })) {
        try_exchanges({number, number, set}, before, 0);
      }
    }
  }

  // Tries the steps of one mesh dimension that send nothing.
  void try_local_steps(size_t number, const Placements& before, size_t d) {
    const int64_t dim = movable_[d];
    const auto i = static_cast<size_t>(dim);
    const auto& list = options_[i];
    for (size_t option = 0; option < list.size(); ++option) {
      if (list[option] == before[i] || before[i].is_partial() ||
          list[option].is_replicate() ||
          (before[i].is_sharded() && list[option].is_sharded())) {
        continue;
      }
      const auto kind = step_kind(space_.frame, before, dim, list[option]);
      if (kind) {
        Cost cost = nodes_[number].cost;
        cost.steps += 1;
        relax(layouts_.changed(number, i, option), number, cost, *kind, d);
      }
    }
  }

  // Tries the steps that reduce a set.
  void try_reductions(size_t number, size_t set) {
    size_t reduced = number;
    for (const int64_t dim : sets_[set].dims) {
      reduced =
          layouts_.changed(reduced, static_cast<size_t>(dim), Replicate());
    }
    const int64_t numel = layouts_.numel(number);
    relax(
        reduced,
        number,
        cost_after(number, StepKind::kAllReduce, set, numel),
        StepKind::kAllReduce,
        set);
    const Cost cost = cost_after(number, StepKind::kReduceScatter, set, numel);
    if (cost < nodes_[goal_].cost) {
      try_shardings(number, number, 0, cost, set);
    }
  }

  // Tries the reduce_scatter of a set to all shardings of its dimensions from
  // number `d` on. The cost does not depend on the shardings.
  void try_shardings(
      size_t number,
      size_t previous,
      size_t d,
      const Cost& cost,
      size_t set) {
    const DimSet& over = sets_[set];
    if (d == over.dims.size()) {
      if (is_promising(number, cost) && layouts_.are_last(number, over.mask)) {
        relax(number, previous, cost, StepKind::kReduceScatter, set);
      }
      return;
    }
    const auto i = static_cast<size_t>(over.dims[d]);
    for (size_t option = 0; option < options_[i].size(); ++option) {
      const Placement& next = options_[i][option];
      if (next.is_sharded() && is_useful(i, next)) {
        try_shardings(
            layouts_.changed(number, i, option), previous, d + 1, cost, set);
      }
    }
  }

  // An all_gather or all_to_all, while its result is chosen.
  struct Candidate {
    size_t number = 0;   // the result
    size_t previous = 0; // the layout before
    size_t set = 0;
    bool gathers_all = true; // all dimensions of the set become R
    bool gathers = false;    // some dimension does
    bool slices = false;     // a dimension outside of the set becomes sharded
  };

  // Chooses the placements of movable dimensions from number `d` on: those of
  // the set become sharded or R, others may change from R to sharded.
  void
  try_exchanges(const Candidate& exchange, const Placements& before, size_t d) {
    if (d == movable_.size()) {
      try_exchange(exchange);
      return;
    }
    const int64_t dim = movable_[d];
    const auto i = static_cast<size_t>(dim);
    const bool is_in_set = (sets_[exchange.set].mask & mesh_dim_bit(dim)) != 0;
    const bool may_slice =
        before[i].is_replicate() && movable_.size() <= kMaxJoinedDims;
    if (!is_in_set && !may_slice) {
      if (is_useful(i, before[i])) {
        try_exchanges(exchange, before, d + 1);
      }
      return;
    }
    for (size_t option = 0; option < options_[i].size(); ++option) {
      const Placement& next = options_[i][option];
      if (next.is_partial() || !is_useful(i, next)) {
        continue;
      }
      Candidate with = exchange;
      with.number = layouts_.changed(exchange.number, i, option);
      with.gathers_all &= !is_in_set || next.is_replicate();
      with.gathers |= is_in_set && next.is_replicate();
      with.slices |= !is_in_set && next.is_sharded();
      try_exchanges(with, before, d + 1);
    }
  }

  void try_exchange(const Candidate& exchange) {
    if (exchange.number == exchange.previous ||
        !may_improve(exchange.number, exchange.previous, exchange.set)) {
      return;
    }
    const StepKind kind = exchange.gathers_all && !exchange.slices
        ? StepKind::kAllGather
        : StepKind::kAllToAll;
    const bool permutes = !exchange.gathers && !exchange.slices;
    const Cost cost = cost_after(
        exchange.previous,
        kind,
        exchange.set,
        layouts_.numel(
            counts_result(kind, permutes) ? exchange.number
                                          : exchange.previous));
    if (is_promising(exchange.number, cost) && is_possible(exchange, kind)) {
      relax(exchange.number, exchange.previous, cost, kind, exchange.set);
    }
  }

  bool is_possible(const Candidate& exchange, StepKind kind) {
    const uint64_t mask = sets_[exchange.set].mask;
    return kind == StepKind::kAllGather
        ? layouts_.are_last(exchange.previous, mask)
        : layouts_.can_exchange(exchange.previous, exchange.number, mask);
  }

  // False if a collective over a set after `previous` certainly costs more than
  // the best path to `number`.
  bool may_improve(size_t number, size_t previous, size_t set) const {
    return nodes_[previous].cost.picoseconds + sets_[set].latency <=
        nodes_[number].cost.picoseconds;
  }

  // Returns the cost of a path through `previous` and a collective that moves a
  // buffer of `numel` elements.
  Cost cost_after(size_t previous, StepKind kind, size_t set, int64_t numel)
      const {
    const DimSet& over = sets_[set];
    const double bytes =
        bytes_sent(*collective_of(kind), over.ranks, numel, space_.item_size);
    Cost cost = nodes_[previous].cost;
    cost.picoseconds += picoseconds(over.link, bytes);
    cost.collectives += 1;
    cost.steps += 1;
    return cost;
  }

  // Returns the least time of a path of this cost to a layout, and on to the
  // goal.
  int64_t bound_of(size_t number, const Cost& cost) {
    Node& node = nodes_[number];
    if (node.time_left < 0) {
      const auto bounds =
          least_time_.between(layouts_.placements_of(number), goal_placements_);
      node.time_left = bounds.least();
      node.longer = bounds.more;
    }
    return cost.picoseconds + node.time_left;
  }

  // True if a path of this cost to a layout may be part of the best one.
  bool is_promising(size_t number, const Cost& cost) {
    return cost < nodes_[number].cost &&
        bound_of(number, cost) <= nodes_[goal_].cost.picoseconds;
  }

  void relax(
      size_t number,
      size_t previous,
      const Cost& cost,
      StepKind kind,
      size_t set) {
    if (!is_promising(number, cost)) {
      return;
    }
    Node& node = nodes_[number];
    node.cost = cost;
    node.previous = previous;
    node.kind = kind;
    node.set = set;
    queue_.push({bound_of(number, cost), cost, number});
  }

  std::vector<Step> path() const {
    std::vector<Step> steps;
    for (size_t at = goal_; at != start_; at = nodes_[at].previous) {
      const Node& node = nodes_[at];
      steps.push_back(
          {node.kind,
           sets_[node.set].dims,
           layouts_.placements_of(node.previous),
           layouts_.placements_of(at)});
    }
    std::ranges::reverse(steps);
    return steps;
  }

  const SearchSpace& space_;
  const Options& options_;
  PlacementsRef goal_placements_;
  MeshDims movable_;
  std::vector<DimSet> sets_;
  Layouts layouts_;
  size_t start_;
  size_t goal_;
  bool is_last_ = false; // only local steps follow the collectives
  std::vector<Node> nodes_;
  LeastTime least_time_;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue_;
};

} // namespace

std::vector<Step>
cheapest_path(const SearchSpace& space, PlacementsRef from, PlacementsRef to) {
  return Search(space, from, to).run();
}

} // namespace dtensor::detail

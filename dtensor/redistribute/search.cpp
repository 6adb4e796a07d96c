// SPDX-License-Identifier: BSD-3-Clause
// Search for the cheapest path between two layouts: A* with the bounds of
// LeastTime.
#include <dtensor/redistribute/plan_impl.h>

#include <dtensor/layout/text.h>
#include <dtensor/redistribute/layouts_impl.h>
#include <dtensor/redistribute/least_time_impl.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>
#include <queue>

namespace dtensor::detail {
namespace {

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
        tried_(sets_, layouts_),
        nodes_(layouts_.size()),
        least_time_(
            space.frame,
            space.item_size,
            space.links.fastest(space.frame.mesh_shape)) {
    for (const DimSet& set : sets_) {
      least_latency_ = std::min(least_latency_, set.latency);
    }
    for (size_t i = 0; i < options_.size(); ++i) {
      auto& useful = useful_.emplace_back();
      for (const Placement& p : options_[i]) {
        useful.push_back(is_local_change(p, to[i]));
      }
    }
  }

  std::vector<Step> run() {
    relax(start_, start_, {0, 0, 0}, StepKind::kSlice, 0);
    while (!queue_.empty()) {
      const Entry entry = queue_.top();
      queue_.pop();
      if (entry.number == goal_) {
        return path();
      }
      if (entry.cost == nodes_[entry.number].cost) {
        expand(entry.number, entry.next);
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
    PathCost cost;
    size_t previous = 0;
    StepKind kind = StepKind::kSlice; // of the step from `previous`
    size_t set = 0;                   // mesh dimensions of that step
    LeastTime::Bounds left;           // of the paths from here to the goal
    bool is_bounded = false;          // `left` is known
  };

  // The steps after a layout: steps that send nothing, collectives after which
  // such steps suffice, and all other collectives. Each of the three has its
  // own bound, and is tried when no path has a lower bound.
  enum class Next : uint8_t { kLocal, kLastCollective, kCollective };

  struct Entry {
    int64_t bound = 0; // least time of a path through this layout
    PathCost cost;
    size_t number = 0;
    Next next = Next::kLocal;
    auto operator<=>(const Entry&) const = default;
  };

  void expand(size_t number, Next next) {
    now_.clear();
    for (size_t i = 0; i < options_.size(); ++i) {
      now_.push_back(layouts_.option_of(number, i));
    }
    if (next != Next::kLocal) {
      is_last_ = next == Next::kLastCollective;
      try_collectives(number);
      return;
    }
    try_local_steps(number);
    const PathCost cost = nodes_[number].cost;
    const LeastTime::Bounds left = nodes_[number].left;
    const int64_t time = cost.picoseconds;
    const int64_t one = std::max(left.one, least_latency_);
    push({time + one, cost, number, Next::kLastCollective});
    push({time + left.more, cost, number, Next::kCollective});
  }

  void push(const Entry& entry) {
    if (entry.bound <= nodes_[goal_].cost.picoseconds) {
      queue_.push(entry);
    }
  }

  // Returns the placement of the expanded layout on mesh dimension `i`.
  const Placement& now(size_t i) const {
    return options_[i][now_[i]];
  }

  // Returns the number of a layout with another option on mesh dimension `i`.
  // On this mesh dimension, the layout has the option of the expanded layout.
  size_t changed(size_t number, size_t i, size_t option) const {
    return layouts_.changed(number, i, now_[i], option);
  }

  // True if a collective may leave this option on mesh dimension `i`.
  bool is_useful(size_t i, size_t option) const {
    return !is_last_ || useful_[i][option];
  }

  void try_collectives(size_t number) {
    for (size_t set = 0; set < sets_.size(); ++set) {
      if (!may_improve(goal_, number, set)) {
        continue;
      }
      const auto all = [&](auto predicate) {
        return std::ranges::all_of(sets_[set].dims, [&](int64_t i) {
          return predicate(now(static_cast<size_t>(i)));
        });
      };
      if (all([](const Placement& p) { return p.is_partial(); })) {
        try_reductions(number, set);
      } else if (
          all([](const Placement& p) { return p.is_sharded(); }) &&
          tried_.add(number, set, nodes_[number].cost, !is_last_)) {
        try_exchanges({number, number, set}, 0);
      }
    }
  }

  // Tries the steps of one mesh dimension that send nothing.
  void try_local_steps(size_t number) {
    for (size_t d = 0; d < movable_.size(); ++d) {
      const auto i = static_cast<size_t>(movable_[d]);
      const Placement& from = now(i);
      for (size_t option = 0; option < options_[i].size(); ++option) {
        const Placement& to = options_[i][option];
        if (to == from || from.is_partial() || to.is_replicate() ||
            (from.is_sharded() && to.is_sharded())) {
          continue;
        }
        const size_t next = changed(number, i, option);
        PathCost cost = nodes_[number].cost;
        cost.steps += 1;
        if (is_promising(next, cost)) {
          if (const auto kind = layouts_.local_step(number, next, i)) {
            relax(next, number, cost, *kind, d);
          }
        }
      }
    }
  }

  // A collective, while its result is chosen.
  struct Candidate {
    size_t number = 0;   // the result
    size_t previous = 0; // the layout before
    size_t set = 0;
    bool gathers_all = true; // all dimensions of the set become R
    bool gathers = false;    // some dimension of the set becomes R
    bool slices = false;     // a dimension outside of the set becomes sharded
  };

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
    const PathCost cost =
        cost_after(number, StepKind::kReduceScatter, set, numel);
    if (cost < nodes_[goal_].cost) {
      try_shardings({number, number, set}, reduced, 0, cost);
    }
  }

  // Tries the reduce_scatter of a set to all shardings of its dimensions from
  // number `d` on. The cost does not depend on the shardings. `whole` is the
  // layout without these shardings.
  void try_shardings(
      const Candidate& made,
      size_t whole,
      size_t d,
      const PathCost& cost) {
    const DimSet& over = sets_[made.set];
    if (d == over.dims.size()) {
      if (is_promising(made.number, cost) &&
          layouts_.can_exchange(made.number, whole, over.mask)) {
        relax(
            made.number,
            made.previous,
            cost,
            StepKind::kReduceScatter,
            made.set);
      }
      return;
    }
    const auto i = static_cast<size_t>(over.dims[d]);
    for (size_t option = 0; option < options_[i].size(); ++option) {
      if (options_[i][option].is_sharded() && is_useful(i, option)) {
        Candidate with = made;
        with.number = changed(made.number, i, option);
        try_shardings(with, whole, d + 1, cost);
      }
    }
  }

  // Chooses the placements of movable dimensions from number `d` on. Dimensions
  // of the set become sharded or R; others may change from R to sharded.
  void try_exchanges(const Candidate& exchange, size_t d) {
    if (d == movable_.size()) {
      try_exchange(exchange);
      return;
    }
    const int64_t dim = movable_[d];
    const auto i = static_cast<size_t>(dim);
    const bool is_in_set = (sets_[exchange.set].mask & mesh_dim_bit(dim)) != 0;
    const bool may_slice =
        now(i).is_replicate() && movable_.size() <= kMaxJoinedDims;
    if (!is_in_set && !may_slice) {
      if (is_useful(i, now_[i])) {
        try_exchanges(exchange, d + 1);
      }
      return;
    }
    for (size_t option = 0; option < options_[i].size(); ++option) {
      const Placement& next = options_[i][option];
      if (next.is_partial() || !is_useful(i, option)) {
        continue;
      }
      Candidate with = exchange;
      with.number = changed(exchange.number, i, option);
      with.gathers_all &= !is_in_set || next.is_replicate();
      with.gathers |= is_in_set && next.is_replicate();
      with.slices |= !is_in_set && next.is_sharded();
      try_exchanges(with, d + 1);
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
    const PathCost cost = cost_after(
        exchange.previous,
        kind,
        exchange.set,
        layouts_.numel(
            counts_result(kind, permutes) ? exchange.number
                                          : exchange.previous));
    if (is_promising(exchange.number, cost) &&
        layouts_.can_exchange(
            exchange.previous, exchange.number, sets_[exchange.set].mask)) {
      relax(exchange.number, exchange.previous, cost, kind, exchange.set);
    }
  }

  // False if a collective over a set after `previous` certainly costs more than
  // the best path to `number`.
  bool may_improve(size_t number, size_t previous, size_t set) const {
    return nodes_[previous].cost.picoseconds + sets_[set].latency <=
        nodes_[number].cost.picoseconds;
  }

  // Returns the cost of a path through `previous` and a collective that moves a
  // buffer of `numel` elements.
  PathCost cost_after(size_t previous, StepKind kind, size_t set, int64_t numel)
      const {
    const DimSet& over = sets_[set];
    const double bytes =
        bytes_sent(*collective_of(kind), over.ranks, numel, space_.item_size);
    PathCost cost = nodes_[previous].cost;
    cost.picoseconds += picoseconds(over.link, bytes);
    cost.collectives += 1;
    cost.steps += 1;
    return cost;
  }

  // Returns the least time of a path of this cost to a layout and from there to
  // the goal.
  int64_t bound_of(size_t number, const PathCost& cost) {
    Node& node = nodes_[number];
    if (!node.is_bounded) {
      node.is_bounded = true;
      node.left =
          least_time_.between(layouts_.placements_of(number), goal_placements_);
    }
    return cost.picoseconds + node.left.least();
  }

  // True if a path of this cost to a layout may be the beginning of the best
  // path.
  bool is_promising(size_t number, const PathCost& cost) {
    return cost < nodes_[number].cost &&
        bound_of(number, cost) <= nodes_[goal_].cost.picoseconds;
  }

  void relax(
      size_t number,
      size_t previous,
      const PathCost& cost,
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
    queue_.push({bound_of(number, cost), cost, number, Next::kLocal});
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
  int64_t least_latency_ = std::numeric_limits<int64_t>::max() / 2;
  TriedExchanges tried_;
  std::vector<c10::SmallVector<bool, 8>> useful_; // see is_useful()
  c10::SmallVector<size_t, 4> now_; // options of the expanded layout
  bool is_last_ = false;            // only local steps follow the collectives
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

// SPDX-License-Identifier: BSD-3-Clause
// Search for the cheapest path between two layouts: A*, whose bound is the time
// of one more collective where one is needed.
#include <dtensor/redistribute/plan_impl.h>

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

// A layout is numbered by the options that it uses, in a mixed radix with one
// digit per mesh dimension, so tables are arrays.
class Search {
 public:
  Search(const SearchSpace& space, PlacementsRef from, PlacementsRef to)
      : space_(space),
        options_(space.options),
        goal_placements_(to),
        movable_(movable_dims(options_)),
        sets_(joinable_sets(space, movable_)) {
    size_t stride = 1;
    for (const auto& list : options_) {
      strides_.push_back(stride);
      stride *= list.size();
    }
    nodes_.resize(stride);
    start_ = number_of(from);
    goal_ = number_of(to);
    for (const DimSet& set : sets_) {
      fastest_.latency_us = std::min(fastest_.latency_us, set.link.latency_us);
      fastest_.gigabytes_per_s =
          std::max(fastest_.gigabytes_per_s, set.link.gigabytes_per_s);
    }
    for (const auto& list : options_) {
      for (const Placement& p : list) {
        has_partial_ |= p.is_partial();
      }
    }
  }

  std::vector<Step> run() {
    known(goal_);
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
    TORCH_INTERNAL_ASSERT(false, "redistribute: no path between two layouts");
  }

 private:
  struct Node {
    Cost cost;
    size_t previous = 0;
    StepKind kind = StepKind::kSlice; // of the step from `previous`
    size_t set = 0;                   // mesh dimensions of that step
    bool is_known = false;            // the fields below are valid
    bool needs_collective = false;
    int64_t numel = 0;
    // One bit for each mask of mesh dimensions: whether their shardings are
    // the last ones, and whether that is known.
    uint64_t last = 0;
    uint64_t last_is_known = 0;
  };

  struct Entry {
    int64_t bound = 0; // least time of a path through this layout
    Cost cost;
    size_t number = 0;
    auto operator<=>(const Entry&) const = default;
  };

  size_t number_of(PlacementsRef placements) const {
    size_t number = 0;
    for (size_t i = 0; i < placements.size(); ++i) {
      number = changed(number, i, placements[i]);
    }
    return number;
  }

  Placements placements_of(size_t number) const {
    Placements placements;
    for (const auto& list : options_) {
      placements.push_back(list[number % list.size()]);
      number /= list.size();
    }
    return placements;
  }

  // Returns the number of the layout with option `option` on mesh dimension
  // `i`.
  size_t changed(size_t number, size_t i, size_t option) const {
    const size_t now = number / strides_[i] % options_[i].size();
    return number + strides_[i] * option - strides_[i] * now;
  }

  size_t changed(size_t number, size_t i, const Placement& p) const {
    const auto& list = options_[i];
    const auto found = std::find(list.begin(), list.end(), p);
    return changed(number, i, static_cast<size_t>(found - list.begin()));
  }

  // True if a mesh dimension at `now` cannot get to `goal` by local steps.
  static bool needs_collective(const Placement& now, const Placement& goal) {
    if (now == goal || now.is_replicate()) {
      return false;
    }
    return now.is_partial() || !goal.is_partial() || !can_pad(goal.reduce_op());
  }

  Node& known(size_t number) {
    Node& node = nodes_[number];
    if (!node.is_known) {
      const Placements placements = placements_of(number);
      node.is_known = true;
      node.numel = largest_numel(space_.frame, placements);
      for (size_t i = 0; i < placements.size(); ++i) {
        node.needs_collective |=
            needs_collective(placements[i], goal_placements_[i]);
      }
    }
    return node;
  }

  // True if the shardings of the mesh dimensions in `mask` are the last ones.
  bool are_last(size_t number, uint64_t mask) {
    constexpr uint64_t kMasks = 64;
    if (mask >= kMasks) {
      return compute_are_last(number, mask);
    }
    Node& node = nodes_[number];
    const uint64_t bit = uint64_t{1} << mask;
    if ((node.last_is_known & bit) == 0) {
      node.last_is_known |= bit;
      node.last |= compute_are_last(number, mask) ? bit : 0;
    }
    return (node.last & bit) != 0;
  }

  bool compute_are_last(size_t number, uint64_t mask) const {
    MeshDims dims;
    for (const int64_t dim : movable_) {
      if ((mask & mesh_dim_bit(dim)) != 0) {
        dims.push_back(dim);
      }
    }
    return are_last_shardings(space_.frame, placements_of(number), dims);
  }

  void expand(size_t number) {
    const Placements before = placements_of(number);
    for (size_t set = 0; set < sets_.size(); ++set) {
      const auto& dims = sets_[set].dims;
      const auto all = [&](auto predicate) {
        return std::all_of(dims.begin(), dims.end(), [&](int64_t i) {
          return predicate(before[static_cast<size_t>(i)]);
        });
      };
      if (all([](const Placement& p) { return p.is_partial(); })) {
        try_reductions(number, set);
      } else if (
          all([](const Placement& p) { return p.is_sharded(); }) &&
          are_last(number, sets_[set].mask)) {
        try_exchanges({number, number, set}, before, 0);
      }
      if (dims.size() == 1) {
        try_local_steps(number, before, set);
      }
    }
  }

  // Tries the steps of one mesh dimension that send nothing.
  void try_local_steps(size_t number, const Placements& before, size_t set) {
    const auto i = static_cast<size_t>(sets_[set].dims[0]);
    const auto& list = options_[i];
    for (size_t option = 0; option < list.size(); ++option) {
      if (list[option] == before[i] || before[i].is_partial() ||
          list[option].is_replicate() ||
          (before[i].is_sharded() && list[option].is_sharded())) {
        continue;
      }
      const auto kind = step_kind(
          space_.frame, before, static_cast<int64_t>(i), list[option]);
      if (kind) {
        Cost cost = nodes_[number].cost;
        cost.steps += 1;
        relax(changed(number, i, option), number, cost, *kind, set);
      }
    }
  }

  // Tries the steps that reduce a set.
  void try_reductions(size_t number, size_t set) {
    size_t reduced = number;
    for (const int64_t dim : sets_[set].dims) {
      reduced = changed(reduced, static_cast<size_t>(dim), Replicate());
    }
    const int64_t numel = known(number).numel;
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
      if (cost < nodes_[number].cost && are_last(number, over.mask)) {
        relax(number, previous, cost, StepKind::kReduceScatter, set);
      }
      return;
    }
    const auto i = static_cast<size_t>(over.dims[d]);
    for (size_t option = 0; option < options_[i].size(); ++option) {
      if (options_[i][option].is_sharded()) {
        try_shardings(changed(number, i, option), previous, d + 1, cost, set);
      }
    }
  }

  // An all_gather or all_to_all, while its result is chosen.
  struct Exchange {
    size_t number = 0;   // the result
    size_t previous = 0; // the layout before
    size_t set = 0;
    bool gathers_all = true; // all dimensions of the set become R
    bool gathers = false;    // some dimension does
    bool slices = false;     // a dimension outside of the set becomes sharded
    uint64_t sharded = 0;    // sharded dimensions that the step may change
  };

  // Chooses the placements of movable dimensions from number `d` on: those of
  // the set become sharded or R, others may change from R to sharded.
  void
  try_exchanges(const Exchange& exchange, const Placements& before, size_t d) {
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
      try_exchanges(exchange, before, d + 1);
      return;
    }
    for (size_t option = 0; option < options_[i].size(); ++option) {
      const Placement& next = options_[i][option];
      if (next.is_partial()) {
        continue;
      }
      Exchange with = exchange;
      with.number = changed(exchange.number, i, option);
      with.gathers_all &= !is_in_set || next.is_replicate();
      with.gathers |= is_in_set && next.is_replicate();
      with.slices |= !is_in_set && next.is_sharded();
      with.sharded |= next.is_sharded() ? mesh_dim_bit(dim) : 0;
      try_exchanges(with, before, d + 1);
    }
  }

  void try_exchange(const Exchange& exchange) {
    if (exchange.number == exchange.previous) {
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
        known(permutes ? exchange.previous : exchange.number).numel);
    if (cost < nodes_[exchange.number].cost && cost < nodes_[goal_].cost &&
        are_last(exchange.number, exchange.sharded)) {
      relax(exchange.number, exchange.previous, cost, kind, exchange.set);
    }
  }

  // Returns the cost of a path through `previous` and a collective that moves a
  // buffer of `numel` elements.
  Cost cost_after(size_t previous, StepKind kind, size_t set, int64_t numel)
      const {
    const DimSet& over = sets_[set];
    const auto bytes = static_cast<double>(dtensor::elements_sent_times_ranks(
                           *collective_of(kind), over.ranks, numel)) *
        static_cast<double>(space_.item_size) / static_cast<double>(over.ranks);
    Cost cost = nodes_[previous].cost;
    cost.picoseconds += picoseconds(over.link, bytes);
    cost.collectives += 1;
    cost.steps += 1;
    return cost;
  }

  // Returns the least time from a layout to the goal. A rank must receive what
  // it does not hold, unless steps may pad.
  int64_t time_left(const Node& node) const {
    constexpr int64_t kRounding = 64; // of the times of all steps
    if (!node.needs_collective) {
      return 0;
    }
    const int64_t missing = has_partial_ ? 0 : nodes_[goal_].numel - node.numel;
    const auto bytes =
        static_cast<double>(std::max<int64_t>(0, missing) * space_.item_size);
    return std::max<int64_t>(0, picoseconds(fastest_, bytes) - kRounding);
  }

  void relax(
      size_t number,
      size_t previous,
      const Cost& cost,
      StepKind kind,
      size_t set) {
    if (!(cost < nodes_[number].cost)) {
      return;
    }
    Node& node = known(number);
    const int64_t bound = cost.picoseconds + time_left(node);
    if (bound > nodes_[goal_].cost.picoseconds) {
      return;
    }
    node.cost = cost;
    node.previous = previous;
    node.kind = kind;
    node.set = set;
    queue_.push({bound, cost, number});
  }

  std::vector<Step> path() const {
    std::vector<Step> steps;
    for (size_t at = goal_; at != start_; at = nodes_[at].previous) {
      const Node& node = nodes_[at];
      steps.push_back(
          {node.kind,
           sets_[node.set].dims,
           placements_of(node.previous),
           placements_of(at)});
    }
    std::reverse(steps.begin(), steps.end());
    return steps;
  }

  const SearchSpace& space_;
  const Options& options_;
  PlacementsRef goal_placements_;
  MeshDims movable_;
  std::vector<DimSet> sets_;
  c10::SmallVector<size_t, 4> strides_;
  LinkCost fastest_{std::numeric_limits<double>::infinity(), 0};
  bool has_partial_ = false;
  size_t start_ = 0;
  size_t goal_ = 0;
  std::vector<Node> nodes_;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue_;
};

} // namespace

std::vector<Step>
cheapest_path(const SearchSpace& space, PlacementsRef from, PlacementsRef to) {
  return Search(space, from, to).run();
}

} // namespace dtensor::detail

// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/redistribute/plan_impl.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <compare>
#include <functional>
#include <limits>
#include <numeric>
#include <queue>

namespace dtensor::detail {
namespace {

constexpr size_t kUsefulDims = 3;
constexpr size_t kMaxLayouts = 1 << 13;
constexpr size_t kMaxLayoutsWithStrided = 300;

using Dims = c10::SmallVector<int64_t, 8>;

void add_cut_dims(Dims& dims, PlacementsRef placements) {
  for (const Placement& p : placements) {
    if (p.is_sharded() &&
        std::find(dims.begin(), dims.end(), p.dim()) == dims.end()) {
      dims.push_back(p.dim());
    }
  }
}

// Adds the largest dimensions as intermediate shardings: S(0) S(0) -> S(1) S(0)
// passes through S(0) S(1), for example. Sharding a large dimension wastes
// least when shards are uneven.
void add_largest_dims(Dims& dims, SizesRef sizes) {
  while (dims.size() < kUsefulDims) {
    int64_t largest = -1;
    for (int64_t d = 0; d < static_cast<int64_t>(sizes.size()); ++d) {
      const int64_t size = sizes[static_cast<size_t>(d)];
      if (size > 1 && std::find(dims.begin(), dims.end(), d) == dims.end() &&
          (largest < 0 || size > sizes[static_cast<size_t>(largest)])) {
        largest = d;
      }
    }
    if (largest < 0) {
      return;
    }
    dims.push_back(largest);
  }
}

template <typename List>
void add_new(List& list, const Placement& p) {
  if (std::find(list.begin(), list.end(), p) == list.end()) {
    list.push_back(p);
  }
}

// Adds the strided shardings of `dim` that a mesh dimension can apply, or undo,
// after mesh dimensions of the sizes `later` on its right have sharded `dim`.
// With them S(0) S(1) can become S(1) S(0) without an all-gather.
template <typename List>
void add_strided(
    List& list,
    int64_t dim,
    int64_t size,
    int64_t ranks,
    const Dims& later) {
  for (size_t subset = 1; subset < size_t{1} << later.size(); ++subset) {
    int64_t parts = 1;
    for (size_t i = 0; i < later.size(); ++i) {
      parts *= (subset >> i & 1) != 0 ? later[i] : 1;
    }
    if (size > 0 && size % (parts * ranks) == 0) {
      add_new(list, StridedShard(dim, parts));
    }
  }
}

Options make_options(
    const Frame& frame,
    PlacementsRef from,
    PlacementsRef to,
    const Dims& dims,
    bool with_strided) {
  Options options(from.size());
  Dims later; // sizes of the mesh dimensions further right that may change
  for (size_t i = from.size(); i-- > 0;) {
    auto& list = options[i];
    list.push_back(from[i]);
    if (from[i] == to[i] && !from[i].is_sharded()) {
      continue; // fixed
    }
    const int64_t ranks = frame.mesh_shape[i];
    add_new(list, to[i]);
    add_new(list, Replicate());
    if (to[i].is_sharded() || !from[i].is_replicate()) {
      for (const int64_t d : dims) {
        add_new(list, Shard(d));
        if (with_strided) {
          const int64_t size = frame.sizes[static_cast<size_t>(d)];
          add_strided(list, d, size, ranks, later);
        }
      }
      later.push_back(ranks);
    }
  }
  return options;
}

size_t count_layouts(const Options& options) {
  size_t count = 1;
  for (const auto& list : options) {
    count *= list.size();
  }
  return count;
}

// The cost of a path, compared lexicographically as in plan().
struct Cost {
  int64_t wire = std::numeric_limits<int64_t>::max();
  int64_t collectives = 0;
  int64_t steps = 0;
  auto operator<=>(const Cost&) const = default;
};

// Dijkstra's algorithm. A layout is numbered by the options that it uses, in a
// mixed radix with one digit per mesh dimension, so tables are arrays.
class Search {
 public:
  Search(
      const Frame& frame,
      PlacementsRef from,
      PlacementsRef to,
      const Options& options)
      : frame_(frame),
        to_(to),
        options_(options) {
    size_t stride = 1;
    for (size_t i = 0; i < from.size(); ++i) {
      strides_.push_back(stride);
      stride *= options[i].size();
      common_ = std::lcm(common_, frame.mesh_shape[i]);
    }
    nodes_.resize(stride);
    start_ = number_of(from);
    goal_ = number_of(to);
  }

  std::vector<Step> run() {
    relax(start_, start_, {0, 0, 0});
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
  };

  struct Entry {
    Cost cost;
    size_t number = 0;
    auto operator<=>(const Entry&) const = default;
  };

  size_t number_of(PlacementsRef placements) const {
    size_t number = 0;
    for (size_t i = 0; i < placements.size(); ++i) {
      const auto& list = options_[i];
      const auto found = std::find(list.begin(), list.end(), placements[i]);
      number += strides_[i] * static_cast<size_t>(found - list.begin());
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

  // Prunes moves: a placement becomes P(op) only if the goal has that P(op),
  // and R becomes a shard only on a mesh dimension that is sharded at the goal.
  bool worth_trying(size_t i, const Placement& p, const Placement& next) const {
    if (p == next || (p.is_partial() && p == to_[i])) {
      return false;
    }
    if (next.is_partial()) {
      return next == to_[i];
    }
    return !p.is_replicate() || to_[i].is_sharded();
  }

  void expand(size_t number) {
    const Placements before = placements_of(number);
    const int64_t before_numel = largest_numel(frame_, before);
    for (size_t i = 0; i < before.size(); ++i) {
      const size_t rest =
          number - strides_[i] * (number / strides_[i] % options_[i].size());
      for (size_t j = 0; j < options_[i].size(); ++j) {
        const Placement& next = options_[i][j];
        if (!worth_trying(i, before[i], next)) {
          continue;
        }
        const auto mesh_dim = static_cast<int64_t>(i);
        if (const auto kind = step_kind(frame_, before, mesh_dim, next)) {
          relax(
              rest + strides_[i] * j,
              number,
              cost_after(number, before, before_numel, *kind, i, next));
        }
      }
    }
  }

  Cost cost_after(
      size_t number,
      const Placements& before,
      int64_t before_numel,
      StepKind kind,
      size_t mesh_dim,
      const Placement& next) const {
    int64_t after_numel = 0;
    if (kind == StepKind::kAllGather) {
      Placements after = before;
      after[mesh_dim] = next;
      after_numel = largest_numel(frame_, after);
    }
    const int64_t n = frame_.mesh_shape[mesh_dim];
    Cost cost = nodes_[number].cost;
    cost.wire += common_ / n *
        elements_sent_times_ranks(kind, n, before_numel, after_numel);
    cost.collectives += collective_of(kind) ? 1 : 0;
    cost.steps += 1;
    return cost;
  }

  void relax(size_t number, size_t previous, const Cost& cost) {
    Node& node = nodes_[number];
    if (cost < node.cost) {
      node = {cost, previous};
      queue_.push({cost, number});
    }
  }

  std::vector<Step> path() const {
    std::vector<Step> steps;
    for (size_t at = goal_; at != start_; at = nodes_[at].previous) {
      steps.push_back(step_between(nodes_[at].previous, at));
    }
    std::reverse(steps.begin(), steps.end());
    return steps;
  }

  Step step_between(size_t number, size_t next) const {
    Step step;
    step.before = placements_of(number);
    const Placements after = placements_of(next);
    size_t i = 0;
    while (step.before[i] == after[i]) {
      ++i;
    }
    step.mesh_dim = static_cast<int64_t>(i);
    step.from = step.before[i];
    step.to = after[i];
    step.kind = *step_kind(frame_, step.before, step.mesh_dim, step.to);
    return step;
  }

  const Frame& frame_;
  PlacementsRef to_;
  const Options& options_;
  c10::SmallVector<size_t, 4> strides_;
  // A common multiple of all mesh sizes, so that wire costs in units of 1 /
  // common_ elements are integers.
  int64_t common_ = 1;
  size_t start_ = 0;
  size_t goal_ = 0;
  std::vector<Node> nodes_;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue_;
};

} // namespace

Options
options_between(const Frame& frame, PlacementsRef from, PlacementsRef to) {
  Dims dims;
  add_cut_dims(dims, from);
  add_cut_dims(dims, to);
  Dims more = dims;
  add_largest_dims(more, frame.sizes);
  Options options = make_options(frame, from, to, more, true);
  if (count_layouts(options) > kMaxLayoutsWithStrided) {
    options = make_options(frame, from, to, more, false);
  }
  if (count_layouts(options) > kMaxLayouts) {
    options = make_options(frame, from, to, dims, false);
  }
  if (count_layouts(options) > kMaxLayouts) {
    options = make_options(frame, from, to, {}, false);
  }
  return options;
}

std::vector<Step> cheapest_path(
    const Frame& frame,
    PlacementsRef from,
    PlacementsRef to,
    const Options& options) {
  return Search(frame, from, to, options).run();
}

} // namespace dtensor::detail

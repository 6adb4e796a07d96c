// SPDX-License-Identifier: BSD-3-Clause
// Branch and bound over the combinations of strategies. A branch fixes the
// strategies of the first mesh dimensions. The bound of a branch is a lower
// bound for the cost of every combination that begins with these strategies.
#include <dtensor/ops/combinations_impl.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

namespace dtensor::detail {
namespace {

constexpr size_t kMaxExactDims = 3;
constexpr int kMaxCombinations = 64; // beyond kMaxExactDims

class CombinationSearch {
 public:
  CombinationSearch(
      const OpCall& call,
      const OpRule& rule,
      const Constraints& constraints)
      : mesh_dims_(static_cast<size_t>(call.mesh.ndim())),
        combinations_(call, rule, constraints),
        cost_(call) {}

  std::optional<ChosenLayouts> run() {
    visit();
    return best_ ? std::optional(ChosenLayouts{layouts_, best_->order})
                 : std::nullopt;
  }

  // Returns the last mesh dimension for which no strategy was feasible.
  int64_t failed() const {
    return static_cast<int64_t>(failed_);
  }

 private:
  using Options = std::vector<Combinations::Option>;

  void visit() {
    if (combinations_.size() == mesh_dims_) {
      compare();
      return;
    }
    const auto options = combinations_.options();
    const auto bounds = bounds_of(options);
    if (bounds.empty()) {
      failed_ = std::max(failed_, combinations_.size());
    }
    for (const Rank& bound : bounds) {
      if (best_ && !(bound < *best_)) {
        return;
      }
      order_.push_back(bound.order.back());
      combinations_.add(options[bound.order.back()].strategy);
      const auto before = combinations_.size() < mesh_dims_
          ? combinations_.plan_next()
          : Combinations::Planned();
      visit();
      combinations_.restore(before);
      combinations_.remove();
      order_.pop_back();
    }
  }

  // Returns the bounds of the branches, one for each feasible strategy of the
  // next mesh dimension, the most promising first.
  std::vector<Rank> bounds_of(const Options& options) {
    std::vector<Rank> bounds;
    bounds.reserve(options.size());
    for (size_t i = 0; i < options.size(); ++i) {
      if (options[i].feasibility != Feasibility::kPossible) {
        continue;
      }
      combinations_.add(options[i].strategy);
      Rank bound = combinations_.rank();
      bound.time = cost_.at_least(combinations_.chosen());
      bound.order = order_;
      bound.order.push_back(i);
      bounds.push_back(std::move(bound));
      combinations_.remove();
    }
    std::sort(bounds.begin(), bounds.end());
    return bounds;
  }

  void compare() {
    if (mesh_dims_ > kMaxExactDims && best_ && ++compared_ > kMaxCombinations) {
      return;
    }
    Rank rank = combinations_.rank();
    const bool limited = best_ && best_->last_resorts == rank.last_resorts;
    rank.time =
        cost_.of(combinations_.chosen(), limited ? best_->time : kNever - 1);
    rank.order = order_;
    if (!best_ || rank < *best_) {
      best_ = rank;
      layouts_ = combinations_.chosen();
    }
  }

  size_t mesh_dims_;
  Combinations combinations_;
  ChoiceCost cost_;
  c10::SmallVector<size_t, 4> order_;
  std::optional<Rank> best_;
  MeshStrategy layouts_;
  size_t failed_ = 0;
  int compared_ = 0;
};

// Turns the strategies of the next mesh dimension into options of a choice.
Choice as_choice(std::vector<Combinations::Option> options, size_t mesh_dim) {
  Choice choice;
  choice.mesh_dim = static_cast<int64_t>(mesh_dim);
  for (auto& option : options) {
    choice.options.push_back({std::move(option.strategy), option.feasibility});
  }
  return choice;
}

// Returns the cost of the chosen combination with another strategy on one mesh
// dimension.
void weigh(
    ScoredStrategy& option,
    const OpCall& call,
    const ChoiceCost& cost,
    MeshStrategy chosen,
    size_t mesh_dim) {
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const auto& to = option.strategy.inputs[i];
    chosen.inputs[i][mesh_dim] = to;
    option.changes +=
        call.inputs[i].placement(static_cast<int64_t>(mesh_dim)) != to ? 1 : 0;
  }
  for (size_t o = 0; o < call.outputs.size(); ++o) {
    chosen.outputs[o][mesh_dim] = option.strategy.outputs[o];
    option.not_sharded += option.strategy.outputs[o].is_sharded() ? 0 : 1;
  }
  option.microseconds = option.may_be_taken()
      ? to_microseconds(cost.of(chosen))
      : std::numeric_limits<double>::infinity();
}

} // namespace

bool operator<(const Rank& a, const Rank& b) {
  const auto key = [](const Rank& rank) {
    return std::tie(
        rank.last_resorts, rank.time, rank.changes, rank.not_sharded);
  };
  return key(a) != key(b)
      ? key(a) < key(b)
      : std::lexicographical_compare(
            a.order.begin(), a.order.end(), b.order.begin(), b.order.end());
}

std::optional<ChosenLayouts> choose_layouts(
    const OpCall& call,
    const OpRule& rule,
    const Constraints& constraints,
    int64_t& failed) {
  CombinationSearch search(call, rule, constraints);
  auto chosen = search.run();
  failed = search.failed();
  return chosen;
}

std::vector<Choice> list_choices(
    const OpCall& call,
    const OpRule& rule,
    const Constraints& constraints,
    const ChosenLayouts& chosen) {
  const ChoiceCost cost(call);
  Combinations combinations(call, rule, constraints);
  std::vector<Choice> choices;
  for (size_t m = 0; m < chosen.taken.size(); ++m) {
    choices.push_back(as_choice(combinations.options(), m));
    Choice& choice = choices.back();
    choice.taken = chosen.taken[m];
    const Strategy taken = choice.options[*choice.taken].strategy;
    for (auto& option : choice.options) {
      combinations.add(option.strategy);
      if (option.may_be_taken() && combinations.rank().last_resorts > 0) {
        option.feasibility = Feasibility::kLastResort;
      }
      combinations.remove();
      weigh(option, call, cost, chosen.layouts, m);
    }
    combinations.add(taken);
    if (m + 1 < chosen.taken.size()) {
      combinations.plan_next();
    }
  }
  return choices;
}

Choice list_infeasible(
    const OpCall& call,
    const OpRule& rule,
    const Constraints& constraints,
    int64_t mesh_dim) {
  Combinations combinations(call, rule, constraints);
  for (int64_t m = 0; m < mesh_dim; ++m) {
    Strategy now;
    for (const auto& input : call.inputs) {
      now.inputs.push_back(input.placement(m));
    }
    now.outputs.resize(call.outputs.size(), Replicate());
    combinations.add(now);
  }
  return as_choice(combinations.options(), static_cast<size_t>(mesh_dim));
}

} // namespace dtensor::detail

// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/redistribute/plan.h>

#include <dtensor/comm/group/owner_impl.h>
#include <dtensor/comm/rank/rank_local_impl.h>
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/redistribute/plan_impl.h>

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <limits>

namespace dtensor {
namespace {

using PlanPtr = std::shared_ptr<const detail::RankPlan>;

// A cache of plans, keyed by the ids of both specs. It is set-associative: a
// lookup touches a single set, and the size is fixed. Specs belong to a rank,
// so each rank has its own cache, which needs no lock.
class PlanCache {
 public:
  static constexpr size_t kSets = 512;
  static constexpr size_t kWays = 4;

  PlanPtr find(uint64_t from, uint64_t to) const {
    for (const Entry& entry : sets_[index(from, to)].entries) {
      if (entry.from == from && entry.to == to) {
        return entry.plan;
      }
    }
    return nullptr;
  }

  void insert(uint64_t from, uint64_t to, PlanPtr plan) {
    Set& s = sets_[index(from, to)];
    s.entries[s.oldest] = {from, to, std::move(plan)};
    s.oldest = (s.oldest + 1) % kWays;
  }

  size_t size() const {
    size_t count = 0;
    for (const Set& s : sets_) {
      for (const Entry& entry : s.entries) {
        count += entry.plan ? 1 : 0;
      }
    }
    return count;
  }

 private:
  struct Entry {
    uint64_t from = 0;
    uint64_t to = 0;
    PlanPtr plan;
  };
  struct Set {
    std::array<Entry, kWays> entries;
    size_t oldest = 0;
  };

  static size_t index(uint64_t from, uint64_t to) {
    const uint64_t mixed =
        (from * 0x9E3779B97F4A7C15u) ^ (to * 0xC2B2AE3D27D4EB4Fu);
    return static_cast<size_t>(mixed >> 32) % kSets;
  }

  std::vector<Set> sets_ = std::vector<Set>(kSets);
};

detail::RankLocal<PlanCache> plan_cache;

void check_same_tensor(const Spec& from, const Spec& to) {
  DTENSOR_CHECK_VALUE(
      from.mesh() == to.mesh(),
      "[redistribute] the meshes differ: {} and {}. Gather with full_tensor() "
      "and distribute the result on the other mesh.",
      to_string(from.mesh()),
      to_string(to.mesh()));
  DTENSOR_CHECK_VALUE(
      from.sizes() == to.sizes(),
      "[redistribute] the global sizes differ: {} and {}. Only the placements "
      "of a tensor can change.",
      from.sizes(),
      to.sizes());
  DTENSOR_CHECK_VALUE(
      from.dtype() == to.dtype(),
      "[redistribute] the dtypes differ: {} and {}. Convert the tensor first, "
      "then redistribute it.",
      short_name(from.dtype()),
      short_name(to.dtype()));
}

// Returns the first mesh dimension with different reductions in `from` and
// `to`.
std::optional<int64_t> changed_reduction(const Spec& from, const Spec& to) {
  for (size_t i = 0; i < from.placements().size(); ++i) {
    const Placement& a = from.placements()[i];
    const Placement& b = to.placements()[i];
    if (a.is_partial() && b.is_partial() && a != b &&
        from.mesh().shape()[i] > 1) {
      return static_cast<int64_t>(i);
    }
  }
  return std::nullopt;
}

void check_reductions(const Spec& from, const Spec& to) {
  const auto changed = changed_reduction(from, to);
  if (!changed) {
    return;
  }
  const auto i = static_cast<size_t>(*changed);
  DTENSOR_THROW_VALUE(
      "[redistribute] cannot go from [{}] to [{}] on mesh dim {}: the "
      "reductions differ. Redistribute to Replicate first.",
      to_string(from.placements()[i]),
      to_string(to.placements()[i]),
      from.mesh().dim_label(*changed));
}

// Returns `from` with the placements of `to` on mesh dimensions of size 1,
// where all placements are equivalent.
Placements start_of(const Spec& from, const Spec& to) {
  Placements start;
  for (size_t i = 0; i < from.placements().size(); ++i) {
    const bool alone = from.mesh().shape()[i] == 1;
    start.push_back((alone ? to : from).placements()[i]);
  }
  return start;
}

using Steps = std::vector<Step>;

// Plans that need no search: steps that send nothing, and the single step of a
// mesh with one dimension.
std::optional<Steps> obvious_steps(
    const detail::Frame& frame,
    const Placements& start,
    PlacementsRef goal) {
  const auto is_shared = [](int64_t n) { return n > 1; };
  const bool is_1d = std::ranges::count_if(frame.mesh_shape, is_shared) == 1;
  Steps steps;
  Placements at = start;
  for (size_t i = 0; i < start.size(); ++i) {
    if (at[i] == goal[i]) {
      continue;
    }
    const auto mesh_dim = static_cast<int64_t>(i);
    const auto kind = detail::step_kind(frame, at, mesh_dim, goal[i]);
    if (!kind || (collective_of(*kind) && !is_1d)) {
      return std::nullopt;
    }
    const Placements before = at;
    at[i] = goal[i];
    steps.push_back({*kind, {mesh_dim}, before, at});
  }
  return steps;
}

// Adds the costs of the steps to the plan.
void add_costs(Plan& plan, const Spec& spec, const detail::Links& links) {
  constexpr double kPicosecondsPerMicrosecond = 1e6;
  const detail::Frame frame{spec.sizes(), spec.mesh().shape()};
  const auto item_size = static_cast<int64_t>(c10::elementSize(spec.dtype()));
  int64_t time = 0;
  for (const Step& step : plan.steps) {
    if (collective_of(step.kind)) {
      const double bytes = detail::bytes_sent(frame, step, item_size);
      plan.wire_bytes += bytes;
      time += picoseconds(links.over(step.mesh_dims), bytes);
    }
  }
  plan.microseconds = static_cast<double>(time) / kPicosecondsPerMicrosecond;
}

// Returns the plan that is cheapest at the costs of `searched`. Its time is
// computed with `links`, the costs of the mesh.
PlanPtr make_plan(
    const Spec& from,
    const Spec& to,
    const detail::Links& links,
    const detail::Links& searched) {
  auto plan = std::make_shared<detail::RankPlan>();
  const detail::Frame frame{from.sizes(), from.mesh().shape()};
  const Placements start = start_of(from, to);
  const PlacementsRef goal = to.placements();
  if (PlacementsRef(start) == goal) {
    return plan;
  }
  if (auto steps = obvious_steps(frame, start, goal)) {
    plan->steps = std::move(*steps);
  } else {
    plan->steps = detail::cheapest_path(
        {frame,
         searched,
         static_cast<int64_t>(c10::elementSize(from.dtype())),
         detail::options_between(frame, start, goal)},
        start,
        goal);
  }
  add_costs(*plan, from, links);
  return plan;
}

PlanPtr find_or_make_plan(const SpecPtr& from, const SpecPtr& to) {
  PlanCache& cache = plan_cache.get();
  if (auto found = cache.find(from->id(), to->id())) {
    return found;
  }
  check_same_tensor(*from, *to);
  check_reductions(*from, *to);
  const detail::Links links(from->mesh());
  auto made = make_plan(*from, *to, links, links);
  if (detail::is_owned_by_this_rank(from->mesh())) {
    cache.insert(from->id(), to->id(), made);
  }
  return made;
}

} // namespace

std::optional<CollectiveKind> collective_of(StepKind kind) {
  switch (kind) {
    case StepKind::kAllGather:
      return CollectiveKind::kAllGather;
    case StepKind::kAllToAll:
      return CollectiveKind::kAllToAll;
    case StepKind::kReduceScatter:
      return CollectiveKind::kReduceScatter;
    case StepKind::kAllReduce:
      return CollectiveKind::kAllReduce;
    case StepKind::kSlice:
    case StepKind::kPartition:
    case StepKind::kPad:
      return std::nullopt;
  }
  return std::nullopt;
}

int64_t Plan::collectives() const {
  return std::ranges::count_if(steps, [](const Step& step) {
    return collective_of(step.kind).has_value();
  });
}

std::shared_ptr<const Plan> plan(const SpecPtr& from, const SpecPtr& to) {
  return find_or_make_plan(from, to);
}

bool can_redistribute(const SpecPtr& from, const SpecPtr& to) {
  return from->mesh() == to->mesh() && from->sizes() == to->sizes() &&
      from->dtype() == to->dtype() && !changed_reduction(*from, *to);
}

double redistribute_cost(const SpecPtr& from, const SpecPtr& to) {
  return can_redistribute(from, to) ? plan(from, to)->microseconds
                                    : std::numeric_limits<double>::infinity();
}

namespace detail {

const std::vector<LocalStep>& RankPlan::local_steps(const Spec& from) const {
  while (local_steps_.size() < steps.size()) {
    local_steps_.emplace_back(from, steps[local_steps_.size()]);
  }
  return local_steps_;
}

std::shared_ptr<const RankPlan> plan_for_this_rank(
    const SpecPtr& from,
    const SpecPtr& to) {
  if (auto found = plan_cache.get().find(from->id(), to->id())) {
    return found; // cached plans belong to this rank
  }
  check_owned_by_this_rank("redistribute", *from);
  return find_or_make_plan(from, to);
}

std::shared_ptr<const Plan>
plan_over(const SpecPtr& from, const SpecPtr& to, const Links& links) {
  check_same_tensor(*from, *to);
  check_reductions(*from, *to);
  return make_plan(*from, *to, Links(from->mesh()), links);
}

size_t cached_plans() {
  return plan_cache.get().size();
}

size_t plan_cache_capacity() {
  return PlanCache::kSets * PlanCache::kWays;
}

} // namespace detail
} // namespace dtensor

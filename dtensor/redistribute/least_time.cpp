// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/redistribute/least_time_impl.h>

namespace dtensor::detail {

bool is_local_change(const Placement& from, const Placement& to) {
  return from == to || from.is_replicate() ||
      (from.is_sharded() && to.is_partial() && can_pad(to.reduce_op()));
}

LeastTime::LeastTime(
    const Frame& frame,
    int64_t item_size,
    const LinkCost& fastest)
    : frame_(frame),
      numel_(static_cast<double>(numel(frame.sizes))),
      world_(static_cast<double>(numel(frame.mesh_shape))),
      item_size_(static_cast<double>(item_size)),
      fastest_(fastest) {
  // Times are rounded per collective. Latencies cover that of third and later
  // collectives.
  constexpr int64_t kFew = 2;
  constexpr int64_t kMany = 64;
  rounding_ = picoseconds(fastest, 0) < kMany ? kMany : kFew;
}

// True if a mesh dimension with one sharding in both layouts gives its ranks
// other elements, since an earlier mesh dimension shards the same tensor
// dimension in one of them: R S(0) and S(0) S(0).
bool LeastTime::shards_other_elements(
    PlacementsRef from,
    PlacementsRef first,
    size_t mesh_dim) const {
  const Placement& sharding = from[mesh_dim];
  if (!sharding.is_sharded()) {
    return false;
  }
  const int64_t dim = sharding.dim();
  for (size_t i = 0; i < mesh_dim; ++i) {
    if (from[i] != first[i] && frame_.mesh_shape[i] > 1 &&
        (from[i].is_sharded(dim) || first[i].is_sharded(dim))) {
      const int64_t before = block_counts(frame_, from, dim)[mesh_dim];
      const int64_t after = block_counts(frame_, first, dim)[mesh_dim];
      return before != after && before != kUneven && after != kUneven;
    }
  }
  return false;
}

LeastTime::Change LeastTime::change_of(PlacementsRef from, PlacementsRef first)
    const {
  Change change;
  for (size_t m = 0; m < frame_.mesh_shape.size(); ++m) {
    const auto n = static_cast<double>(frame_.mesh_shape[m]);
    if (n == 1) {
      continue;
    }
    const bool is_known = m < first.size();
    const bool is_local = !is_known ||
        (is_local_change(from[m], first[m]) &&
         (from[m] != first[m] || !shards_other_elements(from, first, m)));
    // All but one term of a partial target may be neutral elements.
    const bool stays_whole = is_known && first[m].is_replicate();
    change.shares *= stays_whole ? 1 : n;
    if (is_local) {
      change.reduced /= stays_whole && from[m].is_replicate() ? 1 : n;
      continue;
    }
    change.needs_collective = true;
    change.stays_whole |= stays_whole;
    if (from[m].is_partial()) {
      change.terms *= n;
    } else if (!first[m].is_partial()) {
      change.parts *= n;
      change.held /= stays_whole ? 1 : n;
    }
  }
  return change;
}

int64_t LeastTime::time_of(double elements) const {
  return std::max<int64_t>(
      0, picoseconds(fastest_, elements * item_size_) - rounding_);
}

// Counts elements over all ranks. A rank receives what it needs and does not
// hold. If n terms of each element are reduced, n - 1 of them are sent to make
// its value, which is sent to all other ranks that need it. A single collective
// that reduces terms and moves shards pads these first. If the result stays
// whole on a mesh dimension, the collective is an all_reduce.
LeastTime::Bounds LeastTime::between(PlacementsRef from, PlacementsRef first)
    const {
  const Change change = change_of(from, first);
  const int64_t latency = time_of(0);
  if (!change.needs_collective) {
    return {0, 2 * latency};
  }
  const double needed = numel_ / change.shares;
  if (change.terms == 1) {
    const int64_t time = time_of(needed * (1 - 1 / change.parts));
    return {time, time + latency};
  }
  const int64_t time =
      time_of(needed + (change.terms - 1 - change.held) * numel_ / world_);
  const double reduced = numel_ * change.reduced *
      (1 - 1 / (change.terms * change.parts)) * (change.stays_whole ? 2 : 1);
  return {std::max(time, time_of(reduced)), time + latency};
}

} // namespace dtensor::detail

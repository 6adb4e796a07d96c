// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/redistribute/least_time_impl.h>

namespace dtensor::detail {
namespace {

// Positions of the terms of an element, before and after. The element has a
// term for each coordinate on the Partial mesh dimensions of a layout. Ranks
// that differ only on its Replicate mesh dimensions hold the same term. The
// target has a copy of the element for each coordinate on its Replicate mesh
// dimensions. The ranks of a copy differ on Partial mesh dimensions, and
// together hold the terms of the copy.
struct Terms {
  double all = 1;
  double at_copies = 1; // terms held by ranks of a copy
  double copies = 1;
  double held = 1;      // copies whose ranks hold each of these terms
  bool reduces = false; // no copy has all terms

  // Returns the least number of messages, each of which moves one value from
  // one rank to another. Consider the copies in the order in which they become
  // complete, and the moment at which the j-th copy has all terms. Each term
  // that initially was at fewer than j copies has left its ranks. Different
  // ranks hold the terms, so each such term has taken a message of its own.
  // Each of the other copies still has to receive a message. This bound holds
  // for each j, from the number of copies that are complete at the start.
  double messages() const {
    const double until_first = all - at_copies + copies - 1;
    const double with_more = copies > held ? all + copies - held - 1 : 0;
    return reduces ? std::max({copies, until_first, with_more})
                   : std::max(copies - held, with_more);
  }

  // Returns the least number of messages for an element whose terms are at no
  // copy.
  double messages_if_away() const {
    return all + copies - 1;
  }
};

} // namespace

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
  // Times are rounded per collective. The latencies of a third and later
  // collectives cover the rounding.
  constexpr int64_t kFew = 2;
  constexpr int64_t kMany = 64;
  rounding_ = picoseconds(fastest, 0) < kMany ? kMany : kFew;
}

// True if a mesh dimension with the same sharding in both layouts gives its
// ranks different elements, because an earlier mesh dimension shards the same
// tensor dimension in one layout only: R S(0) and S(0) S(0).
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
    // All terms of a partial target except one may be neutral elements.
    const bool stays_unsharded = is_known && first[m].is_replicate();
    change.shares *= stays_unsharded ? 1 : n;
    if (is_local) {
      change.reduced /= stays_unsharded && from[m].is_replicate() ? 1 : n;
      continue;
    }
    change.needs_collective = true;
    change.stays_unsharded |= stays_unsharded;
    if (from[m].is_partial()) {
      change.terms *= n;
    } else if (!first[m].is_partial()) {
      change.parts *= n;
      change.held /= stays_unsharded ? 1 : n;
    }
  }
  return change;
}

// Returns the fraction of the elements that a mesh dimension of n ranks leaves
// at their coordinate, or 1 if unknown. If two shardings depend on independent
// digits of the index, 1/n of the elements stays.
double LeastTime::staying(
    PlacementsRef from,
    PlacementsRef first,
    size_t mesh_dim) const {
  if (!from[mesh_dim].is_sharded() || !first[mesh_dim].is_sharded()) {
    return 1;
  }
  const int64_t n = frame_.mesh_shape[mesh_dim];
  const int64_t dim = from[mesh_dim].dim();
  const int64_t before = block_counts(frame_, from, dim)[mesh_dim];
  bool is_independent = before != kUneven;
  if (first[mesh_dim].dim() == dim) {
    const int64_t after = block_counts(frame_, first, dim)[mesh_dim];
    is_independent &= after != kUneven && before != after &&
        std::max(before, after) % (std::min(before, after) * n) == 0;
  }
  return is_independent ? 1 / static_cast<double>(n) : 1;
}

// Returns the least number of messages per rank between the layouts. This
// number is at most the modelled number of elements that a rank sends.
// Reductions and gathers over n ranks take n - 1 messages per element, as
// modelled. In an exchange, ranks receive the elements that they do not hold,
// and on average they hold 1/n.
double LeastTime::messages(PlacementsRef from, PlacementsRef first) const {
  Terms terms;
  double stay = 1;
  for (size_t m = 0; m < frame_.mesh_shape.size(); ++m) {
    const auto n = static_cast<double>(frame_.mesh_shape[m]);
    if (n == 1) {
      continue;
    }
    terms.all *= from[m].is_partial() ? n : 1;
    terms.at_copies *= from[m].is_partial() ? n : 1;
    if (m >= first.size() || first[m].is_partial()) {
      continue; // each rank may hold a term of the target
    }
    terms.reduces |= from[m].is_partial();
    if (first[m].is_replicate()) {
      terms.copies *= n;
      terms.held *= from[m].is_replicate() ? n : 1;
      continue;
    }
    terms.at_copies /= from[m].is_partial() ? n : 1;
    stay = std::min(stay, staying(from, first, m));
  }
  return numel_ / world_ *
      (stay * terms.messages() + (1 - stay) * terms.messages_if_away());
}

int64_t LeastTime::time_of(double elements) const {
  return std::max<int64_t>(
      0, picoseconds(fastest_, elements * item_size_) - rounding_);
}

// Counts elements over all ranks. A rank receives the elements that it needs
// and does not hold. If n terms of each element are reduced, n - 1 of the terms
// are sent to make the element's value. The value is sent to all other ranks
// that need it. A single collective that reduces terms and moves shards pads
// these shards first. If the result stays unsharded on a mesh dimension, the
// collective is an all_reduce.
LeastTime::Bounds LeastTime::between(PlacementsRef from, PlacementsRef first)
    const {
  const Change change = change_of(from, first);
  const int64_t latency = time_of(0);
  if (!change.needs_collective) {
    return {0, 2 * latency};
  }
  const double needed = numel_ / change.shares;
  const bool has_terms = std::ranges::any_of(
      from, [](const Placement& p) { return p.is_partial(); });
  const int64_t sent = has_terms ? time_of(messages(from, first)) : 0;
  if (change.terms == 1) {
    const int64_t time =
        std::max(sent, time_of(needed * (1 - 1 / change.parts)));
    return {time, time + latency};
  }
  const int64_t time = std::max(
      sent,
      time_of(needed + (change.terms - 1 - change.held) * numel_ / world_));
  const double reduced = numel_ * change.reduced *
      (1 - 1 / (change.terms * change.parts)) *
      (change.stays_unsharded ? 2 : 1);
  return {std::max(time, time_of(reduced)), time + latency};
}

} // namespace dtensor::detail

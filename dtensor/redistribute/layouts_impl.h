// SPDX-License-Identifier: BSD-3-Clause
// The layouts among which a search finds a path, and the exchanges between
// layouts that it has tried.
#pragma once

#include <dtensor/redistribute/plan_impl.h>

#include <array>
#include <compare>
#include <limits>
#include <map>
#include <optional>
#include <vector>

namespace dtensor::detail {

/// Numbers the layouts that can be formed from the options, in a mixed radix
/// with one digit per mesh dimension, so tables of layouts are arrays. Computes
/// the properties of a layout when the search first needs them.
class Layouts {
 public:
  explicit Layouts(const SearchSpace& space);

  size_t size() const {
    return layouts_.size();
  }
  size_t number_of(PlacementsRef placements) const;
  Placements placements_of(size_t number) const;

  /// Returns the number of the layout with option `option`, or placement `p`,
  /// on mesh dimension `i`.
  size_t changed(size_t number, size_t i, size_t option) const;
  size_t changed(size_t number, size_t i, const Placement& p) const;

  /// Returns the number of the layout with another option on mesh dimension
  /// `i`, whose option in `number` is `now`.
  size_t changed(size_t number, size_t i, size_t now, size_t option) const {
    return number + strides_[i] * option - strides_[i] * now;
  }
  size_t option_of(size_t number, size_t i) const;

  /// Returns the elements of the largest local tensor.
  int64_t numel(size_t number);

  /// Returns true if the mesh dimensions not in `mask` shard the same blocks in
  /// `after` as in `before`. Ranks then exchange these blocks over the other
  /// mesh dimensions alone. Mesh dimensions that only `after` shards do not
  /// count. Empty if some shards are uneven, because block counts are then not
  /// sufficient.
  std::optional<bool> keeps_blocks(size_t before, size_t after, uint64_t mask);

  /// True if the ranks over the mesh dimensions in `mask` together hold all
  /// elements that each of them holds afterwards.
  bool can_exchange(size_t before, size_t after, uint64_t mask);

  /// Returns the kind of the step that changes mesh dimension `i` of a layout
  /// from R, or to P, and sends nothing; empty if no such step exists.
  std::optional<StepKind> local_step(size_t before, size_t after, size_t i);

 private:
  struct Layout {
    int64_t numel = -1; // negative if unknown
    BlockCounts blocks; // empty if unknown
  };

  const BlockCounts& blocks(size_t number);
  size_t along(size_t number, int64_t dim) const;

  const SearchSpace& space_;
  c10::SmallVector<size_t, 4> strides_;
  std::vector<Layout> layouts_;
  // The results of holds_all(), by the layouts with only the shardings of one
  // tensor dimension, the mask, and this dimension.
  std::map<std::array<uint64_t, 4>, bool> holds_all_;
};

/// The cost of a path, compared lexicographically as in plan().
struct PathCost {
  int64_t picoseconds = std::numeric_limits<int64_t>::max();
  int64_t collectives = 0;
  int64_t steps = 0;
  auto operator<=>(const PathCost&) const = default;
};

/// The exchanges that a search has tried. Layouts that differ only within a set
/// of mesh dimensions lead to the same layouts by exchanges over this set, at
/// the same cost. The reason: these exchanges depend only on the elements that
/// the set's ranks hold together. The search tries an exchange from the first
/// such layout that it reaches, and from other layouts only if they are reached
/// at less cost.
class TriedExchanges {
 public:
  TriedExchanges(const std::vector<DimSet>& sets, Layouts& layouts);

  /// Returns false if the exchanges over a set need not be tried after layout
  /// `number`, which a path of `cost` reaches. Otherwise records that they are
  /// tried. `all` is false if the search tries only exchanges after which local
  /// steps suffice.
  bool add(size_t number, size_t set, const PathCost& cost, bool all);

 private:
  struct Entry {
    size_t number = 0;
    PathCost cost;
    bool all = false;
    int64_t next = -1; // entry with the same placements beside the set
  };

  const std::vector<DimSet>& sets_;
  Layouts& layouts_;
  std::vector<int64_t> first_; // entry of each set and layout beside it
  std::vector<Entry> entries_;
};

} // namespace dtensor::detail

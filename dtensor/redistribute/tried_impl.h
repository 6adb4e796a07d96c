// SPDX-License-Identifier: BSD-3-Clause
// The exchanges that a search has tried. Layouts that differ only within a set
// of mesh dimensions lead to the same layouts by exchanges over this set, at
// the same cost. The reason: these exchanges depend only on the elements that
// the set's ranks hold together. The search tries an exchange from the first
// such layout that it reaches, and from other layouts only if they are reached
// at less cost.
#pragma once

#include <dtensor/redistribute/layouts_impl.h>

#include <compare>
#include <limits>
#include <vector>

namespace dtensor::detail {

/// The cost of a path, compared lexicographically as in plan().
struct PathCost {
  int64_t picoseconds = std::numeric_limits<int64_t>::max();
  int64_t collectives = 0;
  int64_t steps = 0;
  auto operator<=>(const PathCost&) const = default;
};

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

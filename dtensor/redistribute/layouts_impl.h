// SPDX-License-Identifier: BSD-3-Clause
// The layouts that a search goes through.
#pragma once

#include <dtensor/redistribute/plan_impl.h>

#include <vector>

namespace dtensor::detail {

/// Numbers the layouts that the options make, in a mixed radix with one digit
/// per mesh dimension, so tables of layouts are arrays. Computes what the
/// search asks about a layout when it first asks.
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

  /// Returns the elements of the largest local tensor.
  int64_t numel(size_t number);

  /// True if the shardings of the mesh dimensions in `mask` are the last ones.
  bool are_last(size_t number, uint64_t mask);

  /// True if is_possible() accepts an exchange over the mesh dimensions in
  /// `mask`.
  bool can_exchange(size_t before, size_t after, uint64_t mask);

 private:
  struct Layout {
    int64_t numel = -1; // negative if unknown
    BlockCounts blocks; // empty if unknown
    // One bit for each mask of mesh dimensions: whether their shardings are the
    // last ones, and whether that is known.
    uint64_t last = 0;
    uint64_t last_is_known = 0;
  };

  const BlockCounts& blocks(size_t number, PlacementsRef placements);
  bool compute_are_last(size_t number, uint64_t mask) const;

  const SearchSpace& space_;
  c10::SmallVector<size_t, 4> strides_;
  std::vector<Layout> layouts_;
};

} // namespace dtensor::detail

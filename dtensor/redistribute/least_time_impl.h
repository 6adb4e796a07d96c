// SPDX-License-Identifier: BSD-3-Clause
// Lower bounds of the time between two layouts, from the collectives that are
// needed and the elements that ranks must receive. Searches use them to skip
// layouts.
#pragma once

#include <dtensor/layout/cost.h>
#include <dtensor/redistribute/moves_impl.h>

#include <algorithm>

namespace dtensor::detail {

/// True if a mesh dimension may change from `from` to `to` without a
/// collective.
bool is_local_change(const Placement& from, const Placement& to);

class LeastTime {
 public:
  /// Lower bounds in picoseconds of the times of paths with up to one
  /// collective, and with more.
  struct Bounds {
    int64_t one = 0;
    int64_t more = 0;

    int64_t least() const {
      return std::min(one, more);
    }
  };

  /// `fastest` is at least as fast as each link (Links::fastest).
  LeastTime(const Frame& frame, int64_t item_size, const LinkCost& fastest);

  /// Returns the bounds of the paths from `from` to the layouts that begin with
  /// the placements `first`.
  Bounds between(PlacementsRef from, PlacementsRef first) const;

 private:
  /// The change on the first mesh dimensions.
  struct Change {
    double shares = 1;  // of the elements, one of which a rank needs
    double terms = 1;   // of each element, which are reduced
    double parts = 1;   // of the elements, which ranks exchange
    double held = 1;    // fraction of the parts that a rank need not receive
    double reduced = 1; // fraction of the elements that ranks may reduce
    bool needs_collective = false;
    bool stays_unsharded = false; // on a mesh dimension that changes
  };

  Change change_of(PlacementsRef from, PlacementsRef first) const;
  double messages(PlacementsRef from, PlacementsRef first) const;
  double staying(PlacementsRef from, PlacementsRef first, size_t mesh_dim)
      const;
  bool shards_other_elements(
      PlacementsRef from,
      PlacementsRef first,
      size_t mesh_dim) const;
  int64_t time_of(double elements) const;

  Frame frame_;
  double numel_;
  double world_;
  double item_size_;
  LinkCost fastest_;
  int64_t rounding_;
};

} // namespace dtensor::detail

// SPDX-License-Identifier: BSD-3-Clause
// The cheapest path through layouts that differ in one mesh dimension at a
// time.
#pragma once

#include <dtensor/redistribute/moves_impl.h>

#include <vector>

namespace dtensor::detail {

/// What each mesh dimension may be on the way. A mesh dimension with a single
/// option is left alone.
using Options = std::vector<c10::SmallVector<Placement, 8>>;

/// The options between two layouts: R, the placements of both ends, and cuts of
/// every dimension that either end cuts, filled up to three dimensions with the
/// largest others: Shard(d), and each StridedShard(d, sf) that can be applied
/// after even cuts further right. Without these where they would make more than
/// some hundred layouts, and fewer still beyond some thousand.
Options
options_between(const Frame& frame, PlacementsRef from, PlacementsRef to);

/// A path of least (wire, collectives, steps) from `from` to `to` within
/// `options`; the same for the same arguments. Between `from` and `to` no mesh
/// dimension may change from one reduction to another.
std::vector<Step> cheapest_path(
    const Frame& frame,
    PlacementsRef from,
    PlacementsRef to,
    const Options& options);

} // namespace dtensor::detail

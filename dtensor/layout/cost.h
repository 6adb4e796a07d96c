// SPDX-License-Identifier: BSD-3-Clause
// What a collective costs along one mesh dimension, for all who count: the
// planner of redistributions, the choice of layouts, and the events that say
// what was sent.
//
// Counted are the algorithms that send the fewest bytes. Ranks stand in a ring,
// and in every round each sends one n-th of a buffer to the next, which takes
// what the links of that mesh dimension take (LinkCost). All three ask for
// bytes: links that take nothing but one a byte.
#pragma once

#include <dtensor/api.h>

#include <cstdint>
#include <string_view>

namespace dtensor {

/// The collectives of a Group (comm/group.h), for all who count them.
enum class CollectiveKind : uint8_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kBroadcast,
  kScatter,
  kGather,
  kSend,
  kRecv,
  kBarrier,
};

/// "all_reduce", "all_gather", ...
DTENSOR_API std::string_view to_string(CollectiveKind kind);

/// Rounds on `n` ranks: 2 (n - 1) of an all-reduce, which is a reduce-scatter
/// and an all-gather, n - 1 of these and of an all-to-all or a scatter.
/// For these kinds only; throws ValueError for others.
DTENSOR_API int64_t ring_rounds(CollectiveKind kind, int64_t n);

/// What the links between the ranks of one mesh dimension take.
struct LinkCost {
  /// For a round, whatever is sent in it: seconds of latency.
  double per_round = 0;
  /// For a byte: seconds, the inverse of the bandwidth.
  double per_byte = 1;
};

/// What a collective takes: rounds * (per_round + buffer / n * per_byte).
/// `buffer` is what one n-th of goes in a round: the result of an all-gather,
/// the input of a scatter, this rank's input of the others.
DTENSOR_API double
ring_cost(CollectiveKind kind, int64_t n, double buffer, const LinkCost& link);

/// Bytes that a rank sends: ring_cost() where a byte takes one, and nothing
/// else takes anything.
DTENSOR_API double wire_bytes(CollectiveKind kind, int64_t n, double buffer);

/// Elements that a rank sends, times `n`: a whole number, so that costs compare
/// exactly.
DTENSOR_API int64_t
wire_times_ranks(CollectiveKind kind, int64_t n, int64_t buffer);

} // namespace dtensor

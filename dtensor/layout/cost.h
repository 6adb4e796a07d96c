// SPDX-License-Identifier: BSD-3-Clause
// The cost of a collective along one mesh dimension. The redistribution
// planner, the choice of strategies and the communication events use it.
//
// The formulas assume algorithms that send the fewest bytes: the n ranks form a
// ring, and in every round each rank sends 1/n of a buffer to the next rank.
#pragma once

#include <dtensor/api.h>

#include <cstdint>
#include <string_view>

namespace dtensor {

/// The collectives of a Group (comm/group.h).
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
  /// Observers are not notified of this kind.
  kAllGatherStrings,
};

/// "all_reduce", "all_gather", ...
DTENSOR_API std::string_view to_string(CollectiveKind kind);

/// Returns the number of rounds on `n` ranks. An all-gather, a reduce-scatter,
/// an all-to-all and a scatter take n - 1 rounds. An all-reduce, which is a
/// reduce-scatter followed by an all-gather, takes 2 (n - 1). Throws ValueError
/// for other kinds.
DTENSOR_API int64_t ring_rounds(CollectiveKind kind, int64_t n);

/// Returns the number of bytes that a rank sends in a collective: in each round
/// `buffer` / n bytes. `buffer`: total bytes of the result of an all-gather, of
/// the root's input of a scatter, and otherwise of this rank's input.
DTENSOR_API double wire_bytes(CollectiveKind kind, int64_t n, double buffer);

/// Returns the number of elements that a rank sends, times `n`, for a `buffer`
/// in elements. The product is an integer, so costs compare exactly.
DTENSOR_API int64_t
elements_sent_times_ranks(CollectiveKind kind, int64_t n, int64_t buffer);

/// Modelled speed of the collectives along a mesh dimension: a collective takes
/// latency_us + bytes sent / bandwidth. The defaults are those of ranks that
/// are threads of one process.
struct LinkCost {
  /// Microseconds that a collective of few bytes takes.
  double latency_us = 2;
  /// Bandwidth of a rank in GB/s (10^9 bytes per second).
  double gigabytes_per_s = 10;

  friend bool operator==(const LinkCost&, const LinkCost&) = default;
};

/// Returns the cost of a collective over two links: the larger latency and the
/// smaller bandwidth.
DTENSOR_API LinkCost slower_of(const LinkCost& a, const LinkCost& b);

/// Returns the modelled time of a collective in picoseconds, if a rank sends
/// `bytes`. Times are integers, so sums of times compare exactly and are equal
/// on all ranks.
DTENSOR_API int64_t picoseconds(const LinkCost& link, double bytes);

} // namespace dtensor

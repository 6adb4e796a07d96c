// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/layout/cost.h>

#include <dtensor/error.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace dtensor {
namespace {

constexpr std::array<std::string_view, 11> kNames = {
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "scatter",
    "gather",
    "send",
    "recv",
    "barrier",
    "all_gather_strings"};

} // namespace

std::string_view to_string(CollectiveKind kind) {
  return kNames.at(static_cast<size_t>(kind));
}

int64_t ring_rounds(CollectiveKind kind, int64_t n) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return 2 * (n - 1);
    case CollectiveKind::kAllGather:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllToAll:
    case CollectiveKind::kScatter:
      return n - 1;
    default:
      DTENSOR_THROW_VALUE(
          "[ring_rounds] {} is not a ring collective. Use all_reduce, "
          "all_gather, reduce_scatter, all_to_all or scatter.",
          to_string(kind));
  }
}

double wire_bytes(CollectiveKind kind, int64_t n, double buffer) {
  const auto rounds = static_cast<double>(ring_rounds(kind, n));
  return rounds * buffer / static_cast<double>(n);
}

int64_t
elements_sent_times_ranks(CollectiveKind kind, int64_t n, int64_t buffer) {
  return ring_rounds(kind, n) * buffer;
}

LinkCost slower_of(const LinkCost& a, const LinkCost& b) {
  return {
      std::max(a.latency_us, b.latency_us),
      std::min(a.gigabytes_per_s, b.gigabytes_per_s)};
}

int64_t picoseconds(const LinkCost& link, double bytes) {
  constexpr double kPerMicrosecond = 1e6;
  constexpr double kPerByte = 1e3; // at 1 GB/s
  return std::llround(link.latency_us * kPerMicrosecond) +
      std::llround(bytes * kPerByte / link.gigabytes_per_s);
}

} // namespace dtensor

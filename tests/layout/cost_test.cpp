// SPDX-License-Identifier: BSD-3-Clause
// Costs compared with a simulation of the ring, message by message.
#include <dtensor/layout/cost.h>

#include <tests/error_of.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace dtensor {
namespace TEST_SOURCE {

// Simulates a ring of n ranks that reduce n chunks of a buffer. In each round,
// rank r sends a chunk to the next rank. Returns the number of chunks that rank
// 0 sent until all ranks have `want` chunks with the terms of all ranks.
int64_t chunks_sent(int64_t n, int64_t want) {
  const auto size = static_cast<size_t>(n);
  // terms[r][c]: number of ranks with terms in rank r's copy of chunk c.
  std::vector<std::vector<int64_t>> terms(size, std::vector<int64_t>(size, 1));
  const auto least_complete = [&] {
    int64_t least = n;
    for (const auto& chunks : terms) {
      least =
          std::min<int64_t>(least, std::count(chunks.begin(), chunks.end(), n));
    }
    return least;
  };
  int64_t sent = 0;
  for (int64_t round = 0; least_complete() < want; ++round, ++sent) {
    auto next = terms;
    for (int64_t r = 0; r < n; ++r) {
      const auto chunk = static_cast<size_t>((r - round + 2 * n) % n);
      const auto from = static_cast<size_t>(r);
      const auto to = static_cast<size_t>((r + 1) % n);
      next[to][chunk] =
          terms[from][chunk] == n ? n : terms[to][chunk] + terms[from][chunk];
    }
    terms = next;
  }
  return sent;
}

TEST(Cost, RoundsMatchARing) {
  for (int64_t n = 1; n <= 8; ++n) {
    EXPECT_EQ(
        ring_rounds(CollectiveKind::kReduceScatter, n), chunks_sent(n, 1));
    EXPECT_EQ(ring_rounds(CollectiveKind::kAllReduce, n), chunks_sent(n, n));
  }
}

TEST(Cost, BytesAreAnNthOfTheBufferInEachRound) {
  EXPECT_DOUBLE_EQ(wire_bytes(CollectiveKind::kAllReduce, 4, 100), 150);
  EXPECT_DOUBLE_EQ(wire_bytes(CollectiveKind::kAllGather, 4, 100), 75);
  EXPECT_DOUBLE_EQ(wire_bytes(CollectiveKind::kReduceScatter, 4, 100), 75);
  EXPECT_DOUBLE_EQ(wire_bytes(CollectiveKind::kAllToAll, 4, 100), 75);
  EXPECT_DOUBLE_EQ(wire_bytes(CollectiveKind::kScatter, 4, 100), 75);
  EXPECT_EQ(wire_bytes(CollectiveKind::kAllReduce, 1, 100), 0);
  EXPECT_EQ(elements_sent_times_ranks(CollectiveKind::kAllReduce, 7, 30), 360);
}

TEST(Cost, RefusesOtherCollectives) {
  EXPECT_EQ(
      test_text::error_of<c10::ValueError>(
          [] { ring_rounds(CollectiveKind::kSend, 2); }),
      "[ring_rounds] send is not a ring collective. Use all_reduce, "
      "all_gather, reduce_scatter, all_to_all or scatter.");
}

} // namespace TEST_SOURCE
} // namespace dtensor

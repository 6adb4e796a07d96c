// SPDX-License-Identifier: BSD-3-Clause
// Which tokens of a sequence each rank holds, and which of them attend to
// which: pure arithmetic.
//
// A causal query sees the keys up to its own position, so that of equal pieces
// the last is the most work. Head and tail, as a rank's part, is as much on
// every rank:
//
//   8 tokens on 2 ranks:   0 1 2 3 | 4 5 6 7     in order
//                          0 1 6 7 | 2 3 4 5     head and tail
#pragma once

#include <dtensor/layout/shard_math.h>

#include <vector>

namespace dtensor::detail {

/// The positions that each rank holds, in the order of its part.
using TokensOfRanks = std::vector<Intervals>;

/// The sequence as torch.chunk cuts it: the first part of each rank's size from
/// the front, with half of its tokens, and the rest from the back, if it is
/// `balanced`.
TokensOfRanks tokens_of_ranks(int64_t length, int64_t ranks, bool balanced);

/// How many tokens each rank holds.
Sizes lengths_of(const TokensOfRanks& tokens);

/// All positions in the order in which the parts stand one after the other.
std::vector<int64_t> order_of(const TokensOfRanks& tokens);

/// Rows of queries and of keys, as places in two parts, of which each query
/// sees each key, or, if it is causal, the n-th query the first n keys.
struct AttentionPiece {
  Interval queries;
  Interval keys;
  bool causal = false;
  friend bool operator==(const AttentionPiece&, const AttentionPiece&) =
      default;
};

/// What queries at some positions see of keys at others: every pair once, and
/// no piece is empty, or has more rows of queries than that.
std::vector<AttentionPiece> pieces_of(
    const Intervals& queries,
    const Intervals& keys,
    bool causal,
    int64_t most_rows);

} // namespace dtensor::detail

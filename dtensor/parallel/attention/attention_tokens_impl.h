// SPDX-License-Identifier: BSD-3-Clause
// Assignment of a sequence's tokens to ranks, and the pairs of ranges that
// attend to each other. All functions are pure arithmetic.
//
// A causal query attends to the keys up to its own position, so the last of
// several equal chunks takes the most work. A shard with one chunk from the
// head and one from the tail of the sequence balances the work over ranks:
//
//   8 tokens on 2 ranks:   0 1 2 3 | 4 5 6 7     in order
//                          0 1 6 7 | 2 3 4 5     head and tail
#pragma once

#include <dtensor/layout/shard_math.h>

#include <vector>

namespace dtensor::detail {

/// Positions of the tokens of each rank, in the order of its local shard.
using TokensOfRanks = std::vector<Intervals>;

/// Assigns tokens as torch.chunk does. If `balanced`, each rank gets as many
/// tokens, but half of them from the front of the sequence and half from the
/// back.
TokensOfRanks tokens_of_ranks(int64_t length, int64_t ranks, bool balanced);

/// Returns the number of tokens of each rank.
Sizes lengths_of(const TokensOfRanks& tokens);

/// Returns all positions in the order of the concatenated shards.
std::vector<int64_t> order_of(const TokensOfRanks& tokens);

/// Ranges of query rows and key rows (in their shards) that attend to each
/// other. Every query attends to every key or, if causal, query n to the first
/// n keys.
struct AttentionPiece {
  Interval queries;
  Interval keys;
  bool causal = false;
  friend bool operator==(const AttentionPiece&, const AttentionPiece&) =
      default;
};

/// Splits the attention of queries at some positions to keys at others into
/// pieces. Every pair of query and key appears once. A piece is not empty and
/// has at most `most_rows` query rows.
std::vector<AttentionPiece> pieces_of(
    const Intervals& queries,
    const Intervals& keys,
    bool causal,
    int64_t most_rows);

} // namespace dtensor::detail

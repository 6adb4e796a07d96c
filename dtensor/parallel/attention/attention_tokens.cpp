// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/attention/attention_tokens_impl.h>

#include <dtensor/layout/intervals_impl.h>

#include <algorithm>

namespace dtensor::detail {
namespace {

// Appends `more`, or merges it into the last piece if the two form a rectangle.
void add(std::vector<AttentionPiece>& pieces, const AttentionPiece& more) {
  if (more.queries.size() == 0 || more.keys.size() == 0) {
    return;
  }
  if (!pieces.empty() && !pieces.back().causal && !more.causal) {
    auto& last = pieces.back();
    if (last.keys == more.keys && last.queries.end == more.queries.begin) {
      last.queries.end = more.queries.end;
      return;
    }
    if (last.queries == more.queries && last.keys.end == more.keys.begin) {
      last.keys.end = more.keys.end;
      return;
    }
  }
  pieces.push_back(more);
}

// Interval of positions, and the index of its first token in the local shard.
struct Placed {
  Interval at;
  int64_t place = 0;

  Interval places(Interval positions) const {
    return shifted(positions, place - at.begin);
  }
};

std::vector<Placed> placed(const Intervals& held) {
  std::vector<Placed> result;
  int64_t place = 0;
  for (const auto& interval : held) {
    result.push_back({interval, place});
    place += interval.size();
  }
  return result;
}

Interval between(int64_t begin, int64_t end) {
  return {begin, std::max(begin, end)};
}

// Keys before the first query are visible to all queries. Each later key is
// visible to queries from its own position on.
void add_causal(
    std::vector<AttentionPiece>& pieces,
    const Placed& queries,
    const Placed& keys) {
  const auto q = queries.at;
  const auto k = keys.at;
  const Interval before = between(k.begin, std::min(k.end, q.begin));
  add(pieces, {queries.places(q), keys.places(before), false});
  const int64_t from = std::max(q.begin, k.begin);
  const Interval seeing = between(from, q.end);
  const Interval seen = between(from, std::min(k.end, q.end));
  add(pieces, {queries.places(seeing), keys.places(seen), true});
}

// Returns the positions of local tokens at these indices.
Intervals at_places(const Intervals& held, Interval places) {
  Intervals result;
  for (const auto& each : placed(held)) {
    const auto here = overlap(each.places(each.at), places);
    append_joined(result, shifted(here, each.at.begin - each.place));
  }
  return result;
}

std::vector<AttentionPiece>
all_pieces_of(const Intervals& queries, const Intervals& keys, bool causal) {
  std::vector<AttentionPiece> pieces;
  const Interval all_queries{0, total_size(queries)};
  const Interval all_keys{0, total_size(keys)};
  // If queries and keys have the same positions, their local order is the
  // global order.
  if (!causal || queries == keys) {
    add(pieces, {all_queries, all_keys, causal});
    return pieces;
  }
  for (const auto& k : placed(keys)) {
    for (const auto& q : placed(queries)) {
      add_causal(pieces, q, k);
    }
  }
  return pieces;
}

} // namespace

TokensOfRanks tokens_of_ranks(int64_t length, int64_t ranks, bool balanced) {
  TokensOfRanks tokens(static_cast<size_t>(ranks));
  int64_t front = 0;
  int64_t back = length;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const Interval part = chunk(length, ranks, rank);
    auto& held = tokens[static_cast<size_t>(rank)];
    if (!balanced) {
      append_joined(held, part);
      continue;
    }
    const int64_t head = (part.size() + 1) / 2;
    const int64_t tail = part.size() - head;
    append_joined(held, {front, front + head});
    append_joined(held, {back - tail, back});
    front += head;
    back -= tail;
  }
  return tokens;
}

Sizes lengths_of(const TokensOfRanks& tokens) {
  Sizes lengths;
  for (const auto& held : tokens) {
    lengths.push_back(total_size(held));
  }
  return lengths;
}

std::vector<int64_t> order_of(const TokensOfRanks& tokens) {
  std::vector<int64_t> order;
  for (const auto& held : tokens) {
    append_indices(order, held);
  }
  return order;
}

std::vector<AttentionPiece> pieces_of(
    const Intervals& queries,
    const Intervals& keys,
    bool causal,
    int64_t most_rows) {
  std::vector<AttentionPiece> pieces;
  const int64_t rows = total_size(queries);
  for (int64_t begin = 0; begin < rows; begin += most_rows) {
    const Interval places{begin, std::min(begin + most_rows, rows)};
    for (auto piece : all_pieces_of(at_places(queries, places), keys, causal)) {
      piece.queries.begin += begin;
      piece.queries.end += begin;
      pieces.push_back(piece);
    }
  }
  return pieces;
}

} // namespace dtensor::detail

// SPDX-License-Identifier: BSD-3-Clause
// Tests if the ranks over several mesh dimensions together hold the elements
// that each of them needs.
#include <dtensor/redistribute/moves_impl.h>

#include <dtensor/layout/intervals_impl.h>

#include <vector>

namespace dtensor::detail {
namespace {

// Blocks of a tensor dimension, finest last. Each digit splits the blocks of
// earlier digits.
struct Digit {
  int64_t blocks; // equal blocks that the earlier digits make
  int64_t parts;  // shards of each block
};
using Digits = c10::SmallVector<Digit, 4>;

// Splits digits such that the first digits make `parts` shards, and returns the
// number of these digits; -1 if a digit would be divided unevenly.
int64_t split_off(Digits& digits, int64_t parts) {
  size_t count = 0;
  for (; parts > 1; ++count) {
    if (count == digits.size()) {
      return -1;
    }
    const Digit digit = digits[count];
    if (parts % digit.parts == 0) {
      parts /= digit.parts;
      continue;
    }
    if (digit.parts % parts != 0) {
      return -1;
    }
    digits[count].parts = parts;
    const Digit rest{digit.blocks * parts, digit.parts / parts};
    digits.insert(digits.begin() + static_cast<int64_t>(count) + 1, rest);
    parts = 1;
  }
  return static_cast<int64_t>(count);
}

// Shards the rest of a tensor dimension into `parts` equal shards, and returns
// the blocks that these shards split; kUneven if there is no single number.
int64_t shard_digits(Digits& left, const Placement& sharding, int64_t parts) {
  const int64_t first = split_off(left, sharding.split_factor());
  if (first < 0) {
    return kUneven;
  }
  Digits later(left.begin() + first, left.end());
  if (split_off(later, parts) != 1) {
    return kUneven;
  }
  left.resize(static_cast<size_t>(first));
  left.insert(left.end(), later.begin() + 1, later.end());
  return later[0].blocks;
}

// The exact test for one tensor dimension, which compares the elements of all
// ranks.
class ElementTest {
 public:
  ElementTest(const Frame& frame, const Exchange& exchange, int64_t dim)
      : frame_(frame),
        exchange_(exchange),
        dim_(dim) {
    for (size_t i = 0; i < frame.mesh_shape.size(); ++i) {
      const bool was = exchange.before[i].is_sharded(dim);
      if (was || exchange.after[i].is_sharded(dim)) {
        dims_.push_back(i);
      }
      if (was && (exchange.mask & mesh_dim_bit(i)) != 0) {
        own_dims_.push_back(i);
      }
    }
  }

  bool run() {
    constexpr int64_t kMaxRanks = 64;
    int64_t ranks = 1;
    for (const size_t i : dims_) {
      ranks *= frame_.mesh_shape[i];
    }
    if (ranks > kMaxRanks) {
      return false;
    }
    held_before_.resize(static_cast<size_t>(ranks));
    Sizes coordinate(frame_.mesh_shape.size(), 0);
    do {
      if (!receives_all(coordinate)) {
        return false;
      }
    } while (advance(coordinate, dims_));
    return true;
  }

 private:
  using MeshIndices = c10::SmallVector<size_t, 4>;

  // Moves to the next coordinate along `dims`. After the last coordinate,
  // returns false and moves to the first.
  bool advance(Sizes& coordinate, const MeshIndices& dims) const {
    for (const size_t i : dims) {
      if (++coordinate[i] < frame_.mesh_shape[i]) {
        return true;
      }
      coordinate[i] = 0;
    }
    return false;
  }

  // Returns the position of a rank in the order of advance() along `dims_`.
  size_t position_of(const Sizes& coordinate) const {
    int64_t position = 0;
    for (size_t d = dims_.size(); d-- > 0;) {
      const size_t i = dims_[d];
      position = position * frame_.mesh_shape[i] + coordinate[i];
    }
    return static_cast<size_t>(position);
  }

  Intervals held(PlacementsRef placements, const Sizes& coordinate) const {
    return local_intervals(
        frame_.sizes[static_cast<size_t>(dim_)],
        dim_,
        frame_.mesh_shape,
        placements,
        coordinate);
  }

  // The elements of a rank are computed when they are first needed, because
  // most impossible exchanges are detected at the first ranks.
  const Intervals& held_before(const Sizes& coordinate) {
    auto& known = held_before_[position_of(coordinate)];
    if (!known) {
      known = held(exchange_.before, coordinate);
    }
    return *known;
  }

  // True if the group of the rank at `coordinate` holds all elements that this
  // rank holds afterwards. The members of a group hold different elements.
  bool receives_all(const Sizes& coordinate) {
    const Intervals wanted = held(exchange_.after, coordinate);
    int64_t missing = total_size(wanted);
    Sizes member = coordinate;
    for (const size_t i : own_dims_) {
      member[i] = 0;
    }
    do {
      for (const Interval& theirs : held_before(member)) {
        for (const Interval& mine : wanted) {
          missing -= overlap(mine, theirs).size();
        }
      }
    } while (advance(member, own_dims_));
    return missing == 0;
  }

  const Frame& frame_;
  const Exchange& exchange_;
  int64_t dim_;
  MeshIndices dims_;     // mesh dimensions that shard `dim_`
  MeshIndices own_dims_; // of these, the group's
  std::vector<std::optional<Intervals>> held_before_; // by position_of()
};

// True if mesh dimensions outside of the group shard `dim` before all others
// do, and in the same way before and after. The group then holds all elements
// that these mesh dimensions leave to each of its ranks.
bool others_shard_first(
    const Frame& frame,
    const Exchange& exchange,
    int64_t dim) {
  bool is_first = true;
  for (size_t i = 0; i < frame.mesh_shape.size(); ++i) {
    const Placement& before = exchange.before[i];
    const Placement& after = exchange.after[i];
    if (frame.mesh_shape[i] == 1) {
      continue;
    }
    if (before.is_sharded(dim) && (exchange.mask & mesh_dim_bit(i)) == 0) {
      if (!is_first || before != after) {
        return false;
      }
    } else if (before.is_sharded(dim) || after.is_sharded(dim)) {
      is_first = false;
    }
  }
  return true;
}

} // namespace

BlockCounts
block_counts(const Frame& frame, PlacementsRef placements, int64_t dim) {
  BlockCounts counts(placements.size(), 0);
  int64_t size = frame.sizes[static_cast<size_t>(dim)];
  Digits left{{1, size}};
  bool is_even = size > 0;
  for (size_t i = 0; i < placements.size(); ++i) {
    const int64_t parts = frame.mesh_shape[i];
    if (!placements[i].is_sharded(dim) || parts == 1) {
      continue;
    }
    is_even = is_even && shards_evenly(size, placements[i], parts);
    counts[i] = is_even ? shard_digits(left, placements[i], parts) : kUneven;
    is_even = counts[i] != kUneven;
    size /= parts;
  }
  return counts;
}

BlockCounts block_counts(const Frame& frame, PlacementsRef placements) {
  BlockCounts counts(placements.size(), 0);
  for (size_t i = 0; i < placements.size(); ++i) {
    if (placements[i].is_sharded() && counts[i] == 0) {
      const auto along = block_counts(frame, placements, placements[i].dim());
      for (size_t j = 0; j < counts.size(); ++j) {
        counts[j] += along[j];
      }
    }
  }
  return counts;
}

bool holds_all(const Frame& frame, const Exchange& exchange, int64_t dim) {
  bool is_shared = false; // by mesh dimensions outside of the group
  bool is_uneven = false;
  bool keeps_blocks = true;
  for (size_t i = 0; i < frame.mesh_shape.size(); ++i) {
    const bool was = exchange.before[i].is_sharded(dim);
    const bool is = exchange.after[i].is_sharded(dim);
    is_uneven |= (was && exchange.blocks_before[i] == kUneven) ||
        (is && exchange.blocks_after[i] == kUneven);
    if (was && (exchange.mask & mesh_dim_bit(i)) == 0 &&
        frame.mesh_shape[i] > 1) {
      is_shared = true;
      keeps_blocks &=
          is && exchange.blocks_before[i] == exchange.blocks_after[i];
    }
  }
  if (!is_shared) {
    return true; // the group holds the full dimension
  }
  return is_uneven ? others_shard_first(frame, exchange, dim) ||
          ElementTest(frame, exchange, dim).run()
                   : keeps_blocks;
}

} // namespace dtensor::detail

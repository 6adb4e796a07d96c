// SPDX-License-Identifier: BSD-3-Clause
// AssumedShapes: the global shapes that a rank took for granted since its
// group last met.
//
// DTensor::from_local without a shape takes every shard to be as large as its
// own. That is local and costs no collective, so ranks whose shards differ in
// size do not notice; they do when they next meet, where each compares its
// notes with those of the others.
#pragma once

#include <dtensor/layout/spec.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dtensor::detail {

struct Call;

/// One tensor: what a message says of it. It holds no mesh, which would keep
/// the group alive that keeps these.
struct AssumedShape {
  Sizes sizes;
  Sizes local_sizes;
  Placements placements;
  at::ScalarType dtype = at::kFloat;
  std::string_view module = {}; // whose input it is, if any
  friend bool operator==(const AssumedShape&, const AssumedShape&) = default;
};

class AssumedShapes {
 public:
  AssumedShapes() = default;
  /// What another rank noted.
  AssumedShapes(uint64_t hash, uint64_t count, std::vector<AssumedShape> first)
      : hash_(hash),
        count_(count),
        first_(std::move(first)) {}

  void add(const Spec& spec);
  void clear();
  bool empty() const {
    return count_ == 0;
  }
  /// Whether both made the same tensors in the same order, wherever their
  /// shards were.
  bool agrees_with(const AssumedShapes& other) const {
    return count_ == other.count_ && hash_ == other.hash_;
  }
  uint64_t hash() const {
    return hash_;
  }
  uint64_t count() const {
    return count_;
  }
  /// The tensors, but no more than the first 64.
  const std::vector<AssumedShape>& first() const {
    return first_;
  }

 private:
  uint64_t hash_ = 0;
  uint64_t count_ = 0;
  std::vector<AssumedShape> first_;
};

/// Why the members took different things for granted; nothing if they did not.
/// The text is the same on every rank.
std::optional<std::string> contradiction(
    const std::vector<const Call*>& calls,
    const std::vector<int64_t>& ranks,
    const std::string& label);

} // namespace dtensor::detail

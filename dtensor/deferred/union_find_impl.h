// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <vector>

namespace dtensor::detail {

/// A partition of the numbers from 0, initially singletons.
class UnionFind {
 public:
  void add_one() {
    parents_.push_back(parents_.size());
  }
  /// Returns the representative of the set that contains `member`.
  size_t find(size_t member) const {
    while (parents_[member] != member) {
      member = parents_[member] = parents_[parents_[member]];
    }
    return member;
  }
  void unite(size_t a, size_t b) {
    parents_[find(a)] = find(b);
  }

 private:
  mutable std::vector<size_t> parents_; // with path halving in find()
};

} // namespace dtensor::detail

// SPDX-License-Identifier: BSD-3-Clause
// DuplicateWeights: a check for tensors of the model that a checkpoint holds
// under two names, for example because the saved model did not share the
// weight. Both values must be equal.
#pragma once

#include <dtensor/checkpoint/read_part_impl.h>

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace dtensor::detail {

class DuplicateWeights {
 public:
  void add(std::string first, std::string again, at::Tensor target) {
    pairs_.push_back({std::move(first), std::move(again), std::move(target)});
  }
  /// Reads and compares both values of each pair. All ranks must call it.
  void compare(PartReader& reader);
  /// Throws ValueError if this rank found different values.
  void check() const;

 private:
  struct Pair {
    std::string first;
    std::string again;
    at::Tensor target;
  };
  std::vector<Pair> pairs_;
  std::vector<std::string> differing_;
};

/// Returns an uninitialized tensor like `target`, which may be on the meta
/// device.
at::Tensor empty_like_target(const at::Tensor& target);

} // namespace dtensor::detail

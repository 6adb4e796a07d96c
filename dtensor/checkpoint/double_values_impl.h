// SPDX-License-Identifier: BSD-3-Clause
// Two names in a checkpoint for one tensor of the model, as from a model whose
// weights were not shared: their values have to be the same.
#pragma once

#include <dtensor/checkpoint/read_part_impl.h>

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace dtensor::detail {

class DoubleValues {
 public:
  void add(std::string first, std::string again, at::Tensor target) {
    pairs_.push_back({std::move(first), std::move(again), std::move(target)});
  }
  /// Reads both values of each pair, and compares them. All ranks call it.
  void compare(PartReader& reader);
  /// Throws ValueError where this rank has found different values.
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

/// A tensor like `target`, which may be on the meta device, with arbitrary
/// values.
at::Tensor empty_like_target(const at::Tensor& target);

} // namespace dtensor::detail

// SPDX-License-Identifier: BSD-3-Clause
// Warm operators to measure: each as a call on DTensors, and as a call on plain
// tensors of the local shape.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace bench {

struct Case {
  std::string name;
  std::function<void()> dtensor;
  /// The call on plain tensors; empty if there is no counterpart.
  std::function<void()> plain = nullptr;
};

/// Returns operators without communication: the forward pass only, to be called
/// without autograd, or forward and backward.
std::vector<Case> operator_cases(int64_t world_size, bool backward);

/// Returns a two-layer MLP with styles, colwise then rowwise, against the plain
/// MLP of the full size.
std::vector<Case> module_cases(int64_t world_size, bool backward);

/// Returns from_local, to_local and one redistribution of each kind.
std::vector<Case> conversion_cases(int64_t world_size);

} // namespace bench

// SPDX-License-Identifier: BSD-3-Clause
// The warm operators that are measured: each as a call on DTensors and as the
// same call on plain tensors of this rank's shape.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace bench {

struct Case {
  std::string name;
  std::function<void()> dtensor;
  /// Empty where plain tensors have no counterpart.
  std::function<void()> plain = nullptr;
};

/// Operators that communicate nothing: forward alone, to be called without
/// autograd, or forward and backward.
std::vector<Case> operator_cases(int64_t world_size, bool backward);

/// A styled MLP of two layers, columns then rows, against the plain one of the
/// whole size.
std::vector<Case> module_cases(int64_t world_size, bool backward);

/// from_local, to_local and one redistribution of each kind.
std::vector<Case> conversion_cases(int64_t world_size);

} // namespace bench

// SPDX-License-Identifier: BSD-3-Clause
// OpInfo: facts about one operator. The operator's kernels hold its OpInfo, so
// that a call needs no look-up by name.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <dtensor/ops/registry.h>

#include <bitset>
#include <optional>
#include <string>

namespace dtensor::detail {

/// Facts about an operator, computed once.
struct OpInfo {
  explicit OpInfo(const c10::OperatorHandle& op);

  c10::OperatorHandle op;
  std::string name; // "aten::add.Tensor"
  size_t slot;      // number of its decision cache
  size_t num_args;
  size_t num_returns;
  const OpRule* rule = nullptr; // its own, or that of its functional variant
  bool in_place = false;        // writes its first argument and returns it
  bool inplace_view = false;    // changes the shape, as squeeze_ does
  bool is_view = false;         // results share memory with the first argument
  bool random = false;
  bool is_out = false;
  bool is_region = false;        // intercepted at the autograd key
  bool used_in_backward = false; // copied from the rule
  OpTraits traits;
  /// Per argument: true if the argument's value is part of the key.
  std::bitset<64> value_matters;
  /// LibTorch's own autograd kernel, for a region whose gradient formula
  /// consists of operators with rules; empty for other operators.
  std::optional<c10::SafeKernelFunction> stock;
};

} // namespace dtensor::detail

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace dtensor::detail {

using NamedParameters = std::vector<std::pair<std::string, at::Tensor>>;

/// Returns the parameters of a module for which `is_wanted` is true, with their
/// full names. A shared parameter appears once, under its first name.
template <class IsWanted>
NamedParameters unique_parameters(
    const torch::nn::Module& module,
    const IsWanted& is_wanted) {
  NamedParameters found;
  for (const auto& item : module.named_parameters()) {
    const auto& parameter = item.value();
    const bool is_known = std::ranges::any_of(found, [&](const auto& known) {
      return known.second.is_same(parameter);
    });
    if (!is_known && is_wanted(parameter)) {
      found.emplace_back(item.key(), parameter);
    }
  }
  return found;
}

} // namespace dtensor::detail

// SPDX-License-Identifier: BSD-3-Clause
// Names of the nodes of an autograd graph.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

namespace dtensor::test_text {

/// Returns the names of all nodes below `t`, sorted, without leaves.
inline std::vector<std::string> nodes_below(const at::Tensor& t) {
  std::vector<std::string> names;
  std::set<torch::autograd::Node*> seen;
  std::vector<torch::autograd::Node*> stack = {t.grad_fn().get()};
  while (!stack.empty()) {
    auto* node = stack.back();
    stack.pop_back();
    if (node == nullptr || !seen.insert(node).second) {
      continue;
    }
    if (node->num_outputs() > 0) {
      names.push_back(node->name());
    }
    for (const auto& edge : node->next_edges()) {
      stack.push_back(edge.function.get());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

} // namespace dtensor::test_text

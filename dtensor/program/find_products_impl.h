// SPDX-License-Identifier: BSD-3-Clause
// Calls of a graph with weights that belong to modules.
#pragma once

#include <dtensor/program/program_state_impl.h>

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

namespace dtensor::detail {

/// A call of linear or embedding with the weight of a module.
struct Product {
  size_t node = 0;
  std::string module;
  at::Tensor weight;
  Slot input = 0;
  Slot output = 0;
};

/// Products by the call's index in Graph::nodes.
using Products = std::map<size_t, Product>;

Products find_linear_calls(const ProgramState& state);
Products find_embedding_calls(const ProgramState& state);

} // namespace dtensor::detail

// SPDX-License-Identifier: BSD-3-Clause
// Search for products of a graph that are sharded by columns or by rows.
#pragma once

#include <dtensor/program/plan_text.h>
#include <dtensor/program/program_state_impl.h>

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

namespace dtensor::detail {

/// Returns a style for each sharded product, in the order of the calls. The
/// modules of `root` hold the graph's weights. find_tp_plan() (tp_transform.h)
/// documents the styles.
std::vector<PlanEntryText> find_pairs(
    const ProgramState& state,
    const torch::nn::Module& root);

/// Calls find_pairs() and merges lines that are equal in all layers of `root`,
/// where numbers stand for layers: "layers.*.fc" for "layers.0.fc" and
/// "layers.1.fc".
std::vector<PlanEntryText> find_plan(
    const ProgramState& state,
    const torch::nn::Module& root);

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

Products find_linear_calls(
    const ProgramState& state,
    const torch::nn::Module& root);
Products find_embedding_calls(
    const ProgramState& state,
    const torch::nn::Module& root);

} // namespace dtensor::detail

// SPDX-License-Identifier: BSD-3-Clause
// An autograd node that runs one step of layout_steps_impl.h, or a composition
// of steps.
#pragma once

#include <dtensor/comm/observer.h>
#include <dtensor/torch_nodes_impl.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <string>
#include <string_view>
#include <utility>

namespace dtensor::detail {

/// A node with one input and one output that applies `Step` to the gradient.
/// torch::autograd::Function would cost several times as much, because it
/// stores saved values in a dictionary under a lock.
template <class Step>
class StepNode final : public Node {
 public:
  StepNode(const char* name, Step step) : name_(name), step_(std::move(step)) {}

  /// Undefined gradients stay undefined: a zero tensor of the global shape
  /// would be a plain tensor.
  torch::autograd::variable_list apply(
      torch::autograd::variable_list&& grads) override {
    torch::autograd::variable_list result(1);
    if (grads[0].defined()) {
      const ModuleScope scope(module_, /*backward=*/true);
      result[0] = step_.backward(std::move(grads[0]));
    }
    return result;
  }
  std::string name() const override {
    return name_;
  }

 private:
  const char* name_;
  Step step_;
  // The module that ran forward. Backward collectives are attributed to it.
  std::string_view module_ = ModuleScope::current();
};

/// Records that `node` computed `output` from `input`.
template <class NodeType>
at::Tensor
record(NodeHolder<NodeType> node, const at::Tensor& input, at::Tensor output) {
  node->set_next_edges(torch::autograd::collect_next_edges(input));
  torch::autograd::set_history(output, std::move(node));
  return output;
}

template <class Step>
NodeHolder<StepNode<Step>> step_node(const char* name, Step step) {
  return make_node<StepNode<Step>>(name, std::move(step));
}

} // namespace dtensor::detail

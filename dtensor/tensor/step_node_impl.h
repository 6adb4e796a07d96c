// SPDX-License-Identifier: BSD-3-Clause
// A node of the graph that takes one step of layout_steps_impl.h, or steps that
// are put together.
#pragma once

#include <dtensor/comm/observer.h>
#include <dtensor/torch_nodes_impl.h>

#include <string>
#include <string_view>
#include <utility>

namespace dtensor::detail {

/// One input, one output, and the step that brings the gradient of one to the
/// other. torch::autograd::Function would do, at several times the cost: it
/// keeps what it saves in a dictionary, under a lock.
template <class Step>
class StepNode final : public Node {
 public:
  StepNode(const char* name, Step step) : name_(name), step_(std::move(step)) {}

  /// Undefined gradients stay undefined: a zero of the global shape would be a
  /// plain tensor.
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
  // Backward collectives are the doing of the module that ran forward.
  std::string_view module_ = ModuleScope::current();
};

template <class Step>
NodeHolder<StepNode<Step>> step_node(const char* name, Step step) {
  return make_node<StepNode<Step>>(name, std::move(step));
}

} // namespace dtensor::detail

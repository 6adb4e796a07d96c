// SPDX-License-Identifier: BSD-3-Clause
// Backward steps of from_local, to_local and redistribute. A node of the
// autograd graph runs one step (StepNode) or several (tensor/region.cpp). All
// steps are differentiable.
//
// from_local is the backward of to_local, and vice versa. The same holds for
// their gradient layouts. The gradient of a gradient arrives in the tensor's
// forward layout, with Partial kept. Ranks with Partial results must receive
// Partial gradients too, not full gradients. Otherwise the second derivative
// would be multiplied by the number of ranks.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <dtensor/comm/observer.h>
#include <dtensor/layout/spec.h>
#include <dtensor/torch_nodes_impl.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <string>
#include <string_view>
#include <utility>

namespace dtensor::detail {

/// True if autograd records operators on `t`.
inline bool records(const at::Tensor& t) {
  return c10::GradMode::is_enabled() && t.requires_grad();
}

/// Returns the data of `t` without history, sharing the version counter of
/// `counted`.
inline at::Tensor alias(const at::Tensor& t, const at::Tensor& counted) {
  return at::Tensor(t.unsafeGetTensorImpl()->shallow_copy_and_detach(
      counted.unsafeGetTensorImpl()->version_counter(),
      /*allow_tensor_metadata_change=*/true));
}

/// Returns a DTensor of `local` that shares the version counter of `counted`,
/// because the two share memory. Autograd checks this counter to detect writes
/// to saved tensors. A write to a DTensor does not increment the counter of its
/// local tensor.
at::Tensor wrap_counted(
    const at::Tensor& local,
    const SpecPtr& spec,
    const at::Tensor& counted);

/// Returns the local tensor of `dtensor`, sharing the DTensor's version
/// counter.
at::Tensor local_counted(const at::Tensor& dtensor);

/// Returns `dtensor` in layout and dtype `to`, without history. Casts before
/// communicating.
at::Tensor cast_and_redistribute(const at::Tensor& dtensor, const SpecPtr& to);

/// Asynchronous variant of cast_and_redistribute(): the first use of the result
/// waits. Copies data that other ranks read, unless the caller holds the only
/// reference to `dtensor` (moved in) or to its local tensor.
at::Tensor cast_and_redistribute_async(at::Tensor dtensor, const SpecPtr& to);

/// Returns the layout of the gradient of a local tensor of `forward`.
SpecPtr gradient_spec(const Spec& forward, PlacementsRef grad_placements);

/// Converts the gradient of a DTensor to the gradient of its local tensor.
struct FromLocalStep {
  at::Tensor backward(at::Tensor grad) const;
  SpecPtr forward;
  Placements grad_layout;
  bool of_leaf = false; // true if the local tensor is a leaf
};

/// Converts the gradient of a local tensor to the gradient of the DTensor.
struct ToLocalStep {
  at::Tensor backward(at::Tensor grad) const;
  SpecPtr forward;
  SpecPtr grad_spec;    // from gradient_spec()
  bool of_leaf = false; // true if the DTensor is a leaf
};

/// Converts the gradient of the result to the gradient of the source.
struct RedistributeStep {
  at::Tensor backward(at::Tensor grad) const;
  SpecPtr from;
  at::ScalarType grad_dtype = at::kFloat;
  bool async_op = false;
};

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

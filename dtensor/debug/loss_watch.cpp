// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/debug/loss_watch_impl.h>

#include <dtensor/comm/observer.h>
#include <dtensor/tensor/layout_steps_impl.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>

#include <utility>

namespace dtensor::detail {
namespace {

// A hook that runs once, when the gradient of the loss arrives at the node that
// computed it. LibTorch swallows exceptions of callbacks but rethrows those of
// hooks.
class AtLoss final : public torch::autograd::FunctionPreHook {
 public:
  AtLoss(std::weak_ptr<LossWatch::OnLoss> on_loss, at::Tensor loss)
      : on_loss_(std::move(on_loss)),
        loss_(std::move(loss)) {}

  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& grads) override {
    const auto loss = std::exchange(loss_, at::Tensor());
    const auto on_loss = on_loss_.lock();
    if (loss.defined() && on_loss != nullptr) {
      (*on_loss)(loss);
    }
    return grads;
  }

 private:
  std::weak_ptr<LossWatch::OnLoss> on_loss_;
  at::Tensor loss_;
};

} // namespace

LossWatch::LossWatch(OnLoss on_loss)
    : on_loss_(std::make_shared<OnLoss>(std::move(on_loss))) {}

// Called for each autograd node: the engine opens a range for a node before it
// calls the node's hooks. Ignores a backward pass inside a module's backward.
void LossWatch::on_begin(const at::RecordFunction& /*call*/) {
  const auto node = torch::autograd::get_current_node();
  if (node == nullptr || !ModuleScope::current().empty()) {
    return;
  }
  const auto pass = torch::autograd::get_current_graph_task_id();
  if (std::exchange(last_pass_, pass) == pass) {
    return;
  }
  for (const auto& number : numbers_) {
    if (number.value.defined() && number.node.lock() == node) {
      node->add_pre_hook(std::make_unique<AtLoss>(on_loss_, number.value));
      return;
    }
  }
}

void LossWatch::on_end(const at::RecordFunction& call) {
  const auto& outputs = call.outputs();
  if (outputs.empty() || !outputs[0].isTensor()) {
    return;
  }
  const auto& t = outputs[0].toTensor();
  if (!t.defined() || !t.requires_grad() || t.numel() != 1 || t.is_leaf()) {
    return;
  }
  const auto& node = t.grad_fn();
  auto& latest = numbers_[(next_ + numbers_.size() - 1) % numbers_.size()];
  if (latest.node.lock() == node) {
    return; // result of an operator called by the last one
  }
  numbers_[next_] = {WeakNode(node), alias(t, t)};
  next_ = (next_ + 1) % numbers_.size();
}

} // namespace dtensor::detail

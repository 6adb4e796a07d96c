// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/tensor/region_impl.h>

#include <ATen/core/grad_mode.h>
#include <dtensor/comm/observer.h>
#include <dtensor/redistribute/execute.h>
#include <dtensor/tensor/autograd_impl.h>
#include <dtensor/tensor/inner_nodes_impl.h>
#include <dtensor/tensor/layout_steps_impl.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/missing_derivative_impl.h>
#include <dtensor/tensor/step_node_impl.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace dtensor::detail {
namespace {

using torch::autograd::Edge;
using torch::autograd::variable_list;

bool moves(const Spec& from, const Spec& to) {
  return from.placements() != to.placements();
}

bool moves(const RegionInput& input) {
  return moves(*input.from, *spec_of(input.value));
}

bool moves(const Spec& made, const RegionExit& exit) {
  return exit.to != nullptr && moves(made, *exit.to);
}

// What from_local's backward will ask for, on its way.
at::Tensor begun_for(const FromLocalStep& step, at::Tensor grad) {
  const auto to = spec_of(grad)->with_placements(step.grad_layout);
  return redistribute_autograd(std::move(grad), to, {.async_op = true});
}

// The steps of a gradient from a local tensor inside to the tensor outside.
class WayIn {
 public:
  explicit WayIn(const RegionInput& input)
      : to_local_{
            spec_of(input.value),
            input.grad,
            input.origin.is_same(input.value) && input.origin.is_leaf()} {
    const bool alone = communicates_alone(input.from->mesh());
    if (moves(input)) {
      further().redistribute =
          RedistributeStep{input.from, input.from->dtype(), alone};
    }
    if (!is_dtensor(input.origin)) {
      further().from_local = FromLocalStep{
          input.from,
          without_partial(input.from->placements()),
          input.origin.is_leaf()};
    }
    if (further_ && alone) {
      const auto outside = without_partial(input.from->placements());
      further_->goes_on_alone =
          input.grad->placements() != PlacementsRef(outside);
    }
  }

  /// Whether the gradient is under way after begin().
  bool goes_on_alone() const {
    return further_ && further_->goes_on_alone;
  }
  /// All but what waits for communication.
  at::Tensor begin(at::Tensor grad) const {
    if (records(grad)) {
      name_missing_derivative(grad);
    }
    grad = to_local_.backward(std::move(grad));
    if (further_ && further_->redistribute) {
      grad = further_->redistribute->backward(std::move(grad));
    }
    return goes_on_alone() && further_->from_local
        ? begun_for(*further_->from_local, std::move(grad))
        : grad;
  }
  at::Tensor finish(at::Tensor grad) const {
    return further_ && further_->from_local
        ? further_->from_local->backward(std::move(grad))
        : grad;
  }

 private:
  // Most ways have none: nodes are smaller without.
  struct Further {
    std::optional<RedistributeStep> redistribute;
    std::optional<FromLocalStep> from_local; // of a plain tensor
    bool goes_on_alone = false;
  };
  Further& further() {
    if (further_ == nullptr) {
      further_ = std::make_unique<Further>();
    }
    return *further_;
  }

  ToLocalStep to_local_;
  std::unique_ptr<Further> further_;
};

// And from the tensor outside to the local tensor inside.
class WayOut {
 public:
  WayOut(const SpecPtr& made, const RegionExit& exit)
      : from_local_{made, without_partial(made->placements())},
        is_local_(exit.as_local && !moves(*made, exit)) {
    if (moves(*made, exit)) {
      redistribute_ = RedistributeStep{made, made->dtype()};
      if (exit.as_local) {
        to_local_ = ToLocalStep{
            exit.to,
            gradient_spec(*exit.to, without_partial(exit.to->placements()))};
      }
    }
  }

  at::Tensor backward(at::Tensor grad) const {
    if (is_local_) {
      return grad;
    }
    if (to_local_) {
      grad = to_local_->backward(std::move(grad));
    }
    if (redistribute_) {
      grad = redistribute_->backward(std::move(grad));
    }
    return from_local_.backward(std::move(grad));
  }

 private:
  FromLocalStep from_local_;
  bool is_local_;
  std::optional<RedistributeStep> redistribute_;
  std::optional<ToLocalStep> to_local_; // for a plain tensor
};

// A plain tensor enters as it is where nothing changes it or its gradient.
bool passes_through(const RegionInput& input) {
  const auto outside = without_partial(input.from->placements());
  return !is_dtensor(input.origin) && !moves(input) &&
      input.grad->placements() == PlacementsRef(outside);
}

// As many inputs as outputs: the tensors that enter.
class EnterNode final : public Node {
 public:
  explicit EnterNode(size_t most) {
    edges_.reserve(most);
  }
  void add(const RegionInput& input) {
    edges_.push_back(torch::autograd::impl::gradient_edge(input.origin));
    ways_.emplace_back(input);
  }
  void connect() {
    set_next_edges(std::move(edges_));
  }

  const WayIn& way(size_t slot) const {
    return ways_[slot];
  }

  variable_list apply(variable_list&& grads) override {
    const ModuleScope scope(module_, /*backward=*/true);
    variable_list result(grads.size());
    for (size_t i = 0; i < grads.size(); ++i) {
      if (grads[i].defined() && task_should_compute_output(i)) {
        result[i] = ways_[i].begin(std::move(grads[i]));
      }
    }
    for (size_t i = 0; i < result.size(); ++i) {
      if (result[i].defined()) {
        result[i] = ways_[i].finish(std::move(result[i]));
      }
    }
    return result;
  }
  std::string name() const override {
    return "EnterBackward";
  }

 private:
  torch::autograd::edge_list edges_; // until they are connected
  c10::SmallVector<WayIn, 3> ways_;
  // Backward collectives are the doing of the module that ran forward.
  std::string_view module_ = ModuleScope::current();
};

// The whole region: the nodes within run inside this one, which spares the
// engine's work for each of them.
//
// Until its gradient is differentiated. What the nodes within have saved is
// then part of the new graph, and a pass reaches them through it too: they must
// run once for all gradients that they get, or what they saved is gone when
// they run again. So from then on this node does no more than lead to them.
class RegionNode final : public Node {
 public:
  RegionNode(InnerNodes inner, NodePtr enter, WayOut way)
      : inner_(std::move(inner)),
        enter_(std::move(enter)),
        way_out_(std::move(way)) {
    torch::autograd::edge_list edges;
    edges.reserve(inner_.exits().size() + 1);
    for (const auto& exit : inner_.exits()) {
      edges.push_back(
          exit.slot < 0 ? exit.edge
                        : enter_->next_edge(static_cast<size_t>(exit.slot)));
    }
    edges.push_back(inner_.entry());
    set_next_edges(std::move(edges)); // which counts how far leaves are away
    next_edges().back() = {};
  }

  variable_list apply(variable_list&& grads) override {
    variable_list result(num_outputs());
    if (!grads[0].defined()) {
      return result;
    }
    const ModuleScope scope(module_, /*backward=*/true);
    if (next_edges().back().is_valid()) {
      result.back() = way_out_.backward(std::move(grads[0]));
      return result;
    }
    if (c10::GradMode::is_enabled()) {
      unfold_after_this_pass();
    }
    // What is communicated is computed first, and under way while the rest is.
    const ExitSet early = early_exits();
    auto locals = inner_.run(
        way_out_.backward(std::move(grads[0])),
        early,
        [&](InnerNodes::Locals& there) { begin(there, early, result); });
    if (early.any()) {
      begin(locals, early, result); // if it was not to be had before
    }
    begin(locals, ~early, result);
    for (size_t i = 0; i < locals.size(); ++i) {
      const auto slot = inner_.exits()[i].slot;
      if (slot >= 0 && result[i].defined()) {
        result[i] = way_in(slot).finish(std::move(result[i]));
      }
    }
    return result;
  }
  void release_variables() override {
    if (!next_edges().back().is_valid()) {
      inner_.release_variables();
    }
  }
  void will_release_variables() override {
    if (!next_edges().back().is_valid()) {
      inner_.will_release_variables();
    }
  }
  std::string name() const override {
    return inner_.name();
  }

 private:
  void unfold_after_this_pass() {
    torch::autograd::Engine::get_default_engine().queue_callback(
        [self = getptr()] {
          auto& edges = self->next_edges();
          std::fill(edges.begin(), edges.end(), torch::autograd::Edge());
          edges.back() = static_cast<RegionNode&>(*self).inner_.entry();
        });
  }

  // Those whose gradients go on alone. What is differentiated again is recorded
  // in one run.
  ExitSet early_exits() const {
    ExitSet early;
    if (c10::GradMode::is_enabled()) {
      return early;
    }
    const auto& exits = inner_.exits();
    for (size_t i = 0; i < std::min(exits.size(), early.size()); ++i) {
      early[i] = exits[i].slot >= 0 && way_in(exits[i].slot).goes_on_alone() &&
          task_should_compute_output(i);
    }
    return early;
  }

  void begin(
      InnerNodes::Locals& locals,
      const ExitSet& which,
      variable_list& result) {
    for (const auto i : inner_.exits_by_slot()) {
      const bool is_meant = i >= which.size() || which[i];
      if (is_meant && locals[i].defined() && task_should_compute_output(i)) {
        const auto slot = inner_.exits()[i].slot;
        result[i] = slot < 0 ? std::move(locals[i])
                             : way_in(slot).begin(std::move(locals[i]));
      }
    }
  }

  const WayIn& way_in(int64_t slot) const {
    return static_cast<const EnterNode&>(*enter_).way(
        static_cast<size_t>(slot));
  }

  InnerNodes inner_;
  NodePtr enter_;
  WayOut way_out_;
  std::string_view module_ = ModuleScope::current();
};

} // namespace

RegionInput region_input(at::Tensor origin, const SpecPtr& to, SpecPtr grad) {
  const auto from = spec_of(origin);
  auto value = to == nullptr || !moves(*from, *to)
      ? origin
      : cast_and_redistribute(origin, to);
  return {std::move(origin), from, std::move(value), std::move(grad)};
}

Region::Region(const RegionInputs& inputs) {
  NodeHolder<EnterNode> enter;
  for (const auto& input : inputs) {
    if (!records(input.origin)) {
      locals_.push_back(local_counted(input.value));
    } else if (passes_through(input)) {
      passing_.push_back(torch::autograd::impl::gradient_edge(input.origin));
      locals_.push_back(input.origin);
    } else {
      if (enter == nullptr) {
        enter = make_node<EnterNode>(inputs.size());
      }
      enter->add(input);
      auto local = alias(local_of(input.value), input.value);
      torch::autograd::set_history(local, enter);
      locals_.push_back(std::move(local));
    }
  }
  if (enter != nullptr) {
    enter->connect();
    enter_ = std::move(enter);
  }
}

at::Tensor Region::leave(
    const at::Tensor& local,
    const SpecPtr& made,
    const RegionExit& exit,
    bool may_fuse) const {
  if (!records(local)) {
    return leave_unrecorded(local, made, exit);
  }
  const bool is_moved = moves(*made, exit);
  if (may_fuse && enter_ != nullptr) {
    if (auto inner = InnerNodes::between(local, enter_.get(), passing_)) {
      auto result = exit.as_local && !is_moved
          ? alias(local, local)
          : leave_unrecorded(local, made, exit);
      torch::autograd::set_history(
          result,
          make_node<RegionNode>(std::move(*inner), enter_, WayOut(made, exit)));
      return result;
    }
  }
  if (!is_moved) {
    return exit.as_local ? local : from_local_autograd(local, made);
  }
  auto result = leave_unrecorded(local, made, exit);
  auto node = step_node("LeaveBackward", WayOut(made, exit));
  node->set_next_edges(torch::autograd::collect_next_edges(local));
  torch::autograd::set_history(result, std::move(node));
  return result;
}

at::Tensor leave_unrecorded(
    const at::Tensor& local,
    const SpecPtr& made,
    const RegionExit& exit) {
  if (!moves(*made, exit)) {
    return exit.as_local ? local : wrap_counted(local, made, local);
  }
  if (exit.as_local) {
    const auto part = local.requires_grad() ? alias(local, local) : local;
    return redistribute_local(part, made, exit.to);
  }
  auto whole = wrap_counted(local, made, local);
  return communicates_alone(made->mesh())
      ? cast_and_redistribute_async(std::move(whole), exit.to)
      : cast_and_redistribute(whole, exit.to);
}

at::Tensor enter_alone(const RegionInput& input) {
  return Region({input}).locals()[0];
}

} // namespace dtensor::detail

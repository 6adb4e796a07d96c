// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/tensor/region_impl.h>

#include <ATen/core/grad_mode.h>
#include <dtensor/comm/observer.h>
#include <dtensor/redistribute/execute.h>
#include <dtensor/tensor/autograd_impl.h>
#include <dtensor/tensor/inner_nodes_impl.h>
#include <dtensor/tensor/layout_steps_impl.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/region_ways_impl.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

namespace dtensor::detail {
namespace {

using torch::autograd::Edge;
using torch::autograd::variable_list;

// The node before a region. It has one input and one output per tensor that
// enters the region.
class EnterNode final : public Node {
 public:
  explicit EnterNode(size_t most) {
    edges_.reserve(most);
  }
  void add(const Conversion& input) {
    edges_.push_back(torch::autograd::impl::gradient_edge(input.origin));
    ways_.emplace_back(input);
  }
  void connect() {
    set_next_edges(std::move(edges_));
  }

  const InputBackward& way(size_t slot) const {
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
  torch::autograd::edge_list edges_; // held until connect()
  c10::SmallVector<InputBackward, 3> ways_;
  // The module that ran forward. Backward collectives are attributed to it.
  std::string_view module_ = ModuleScope::current();
};

// The node of a fused region. It runs the recorded nodes itself, which saves
// the engine's work per node.
//
// Once its gradient is differentiated, the node stops fusing and only forwards
// to the recorded nodes. Their saved tensors are then part of the new graph,
// and a backward pass also reaches the nodes through the new graph. The nodes
// must run once with the sum of all gradients, because a second run would find
// their saved tensors released.
class RegionNode final : public Node {
 public:
  RegionNode(InnerNodes inner, NodePtr enter, ResultBackward way)
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
    set_next_edges(std::move(edges)); // computes the topological number
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
    // Gradients to be communicated are computed first, so that communication
    // overlaps with the rest of the computation.
    const ExitSet early = early_exits();
    auto locals = inner_.run(
        way_out_.backward(std::move(grads[0])),
        early,
        [&](InnerNodes::Locals& there) { begin(there, early, result); });
    if (early.any()) {
      begin(locals, early, result); // if they were not computed early
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
          std::ranges::fill(edges, torch::autograd::Edge());
          edges.back() = static_cast<RegionNode&>(*self).inner_.entry();
        });
  }

  // Exits whose gradients are communicated in the background. With create_graph
  // there are no such exits, because the backward pass must be recorded in a
  // single run.
  ExitSet early_exits() const {
    ExitSet early;
    if (c10::GradMode::is_enabled()) {
      return early;
    }
    const auto& exits = inner_.exits();
    for (size_t i = 0; i < std::min(exits.size(), early.size()); ++i) {
      early[i] = exits[i].slot >= 0 && way_in(exits[i].slot).is_async() &&
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

  const InputBackward& way_in(int64_t slot) const {
    return static_cast<const EnterNode&>(*enter_).way(
        static_cast<size_t>(slot));
  }

  InnerNodes inner_;
  NodePtr enter_;
  ResultBackward way_out_;
  std::string_view module_ = ModuleScope::current();
};

} // namespace

Conversion
conversion_to(at::Tensor origin, const SpecPtr& to, SpecPtr gradient) {
  const auto from = spec_of(origin);
  auto value = to == nullptr || !moves(*from, *to)
      ? origin
      : cast_and_redistribute(origin, to);
  return {std::move(origin), from, std::move(value), std::move(gradient)};
}

Region::Region(const Conversions& inputs) {
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

at::Tensor Region::convert_result(
    const at::Tensor& local,
    const SpecPtr& made,
    const ResultConversion& exit,
    bool may_fuse) const {
  if (!records(local)) {
    return convert_unrecorded_result(local, made, exit);
  }
  const bool is_moved = moves(*made, exit);
  if (may_fuse && enter_ != nullptr) {
    if (auto inner = InnerNodes::between(local, enter_.get(), passing_)) {
      auto result = exit.as_local && !is_moved
          ? alias(local, local)
          : convert_unrecorded_result(local, made, exit);
      torch::autograd::set_history(
          result,
          make_node<RegionNode>(
              std::move(*inner), enter_, ResultBackward(made, exit)));
      return result;
    }
  }
  if (!is_moved) {
    return exit.as_local ? local : from_local_autograd(local, made);
  }
  return record(
      step_node("LeaveBackward", ResultBackward(made, exit)),
      local,
      convert_unrecorded_result(local, made, exit));
}

at::Tensor convert_unrecorded_result(
    const at::Tensor& local,
    const SpecPtr& made,
    const ResultConversion& exit) {
  if (!moves(*made, exit)) {
    return exit.as_local ? local : wrap_counted(local, made, local);
  }
  if (exit.as_local) {
    const auto part = local.requires_grad() ? alias(local, local) : local;
    return redistribute_local(part, made, exit.to);
  }
  auto wrapped = wrap_counted(local, made, local);
  return communicates_in_background(made->mesh())
      ? cast_and_redistribute_async(std::move(wrapped), exit.to)
      : cast_and_redistribute(wrapped, exit.to);
}

at::Tensor convert_single_input(const Conversion& input) {
  return Region({input}).locals()[0];
}

} // namespace dtensor::detail

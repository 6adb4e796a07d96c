// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/tensor/region_impl.h>

#include <ATen/core/grad_mode.h>
#include <dtensor/comm/observer.h>
#include <dtensor/tensor/autograd_impl.h>
#include <dtensor/tensor/layout_steps_impl.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/torch_nodes_impl.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace dtensor::detail {
namespace {

using torch::autograd::variable_list;

// The steps of a gradient from a local tensor inside to the tensor outside.
struct WayIn {
  at::Tensor backward(at::Tensor grad) const {
    grad = to_local.backward(std::move(grad));
    if (redistribute) {
      grad = redistribute->backward(std::move(grad));
    }
    return from_local ? from_local->backward(std::move(grad)) : grad;
  }

  std::optional<FromLocalStep> from_local; // of a plain tensor
  std::optional<RedistributeStep> redistribute;
  ToLocalStep to_local;
};

// And from the tensor outside to the local tensor inside.
struct WayOut {
  at::Tensor backward(at::Tensor grad) const {
    if (to_local) {
      grad = to_local->backward(std::move(grad));
    }
    return from_local.backward(redistribute.backward(std::move(grad)));
  }

  FromLocalStep from_local;
  RedistributeStep redistribute;
  std::optional<ToLocalStep> to_local; // for a plain tensor
};

// As many inputs as outputs, each with its way.
template <class Way>
class WaysNode final : public Node {
 public:
  explicit WaysNode(const char* name) : name_(name) {}

  void add(const at::Tensor& input, Way way) {
    add_next_edge(torch::autograd::impl::gradient_edge(input));
    ways_.push_back(std::move(way));
  }

  variable_list apply(variable_list&& grads) override {
    const ModuleScope scope(module_, /*backward=*/true);
    variable_list result(grads.size());
    for (size_t i = 0; i < grads.size(); ++i) {
      if (grads[i].defined() && task_should_compute_output(i)) {
        result[i] = ways_[i].backward(std::move(grads[i]));
      }
    }
    return result;
  }
  std::string name() const override {
    return name_;
  }

 private:
  const char* name_;
  c10::SmallVector<Way, 4> ways_;
  // Backward collectives are the doing of the module that ran forward.
  std::string_view module_ = ModuleScope::current();
};

bool moves(const Spec& from, const Spec& to) {
  return from.placements() != to.placements();
}

// A plain tensor enters as it is where nothing changes it or its gradient.
bool passes_through(const RegionInput& input) {
  const auto outside = without_partial(input.from->placements());
  return !is_dtensor(input.origin) &&
      !moves(*input.from, *spec_of(input.value)) &&
      input.grad->placements() == PlacementsRef(outside);
}

WayIn way_in(const RegionInput& input) {
  const auto& to = spec_of(input.value);
  const auto& from = input.from;
  const bool is_plain = !is_dtensor(input.origin);
  const bool is_moved = moves(*from, *to);
  const bool of_leaf = !is_plain && !is_moved && input.origin.is_leaf();
  WayIn way{{}, {}, {to, input.grad, of_leaf}};
  if (is_moved) {
    way.redistribute = RedistributeStep{from, from->dtype()};
  }
  if (is_plain) {
    way.from_local = FromLocalStep{
        from, without_partial(from->placements()), input.origin.is_leaf()};
  }
  return way;
}

} // namespace

RegionInput region_input(at::Tensor origin, const SpecPtr& to, SpecPtr grad) {
  const auto from = spec_of(origin);
  auto value = to == nullptr || !moves(*from, *to)
      ? origin
      : cast_and_redistribute(origin, to);
  return {std::move(origin), from, std::move(value), std::move(grad)};
}

c10::SmallVector<at::Tensor, 4> enter_region(const RegionInputs& inputs) {
  c10::SmallVector<at::Tensor, 4> locals;
  NodeHolder<WaysNode<WayIn>> node;
  for (const auto& input : inputs) {
    if (!records(input.origin)) {
      locals.push_back(local_counted(input.value));
    } else if (passes_through(input)) {
      locals.push_back(input.origin);
    } else {
      if (node == nullptr) {
        node = make_node<WaysNode<WayIn>>("EnterBackward");
      }
      node->add(input.origin, way_in(input));
      auto local = alias(
          local_of(input.value),
          input.value.unsafeGetTensorImpl()->version_counter());
      torch::autograd::set_history(local, node);
      locals.push_back(std::move(local));
    }
  }
  return locals;
}

at::Tensor leave_region(
    const at::Tensor& local,
    const SpecPtr& made,
    const RegionExit& exit) {
  if (exit.to == nullptr || !moves(*made, *exit.to)) {
    return exit.as_local ? local : from_local_autograd(local, made);
  }
  auto result =
      cast_and_redistribute(wrap_counted(local, made, local), exit.to);
  if (exit.as_local) {
    result = local_counted(result);
  }
  if (!records(local)) {
    return result;
  }
  auto node = make_node<WaysNode<WayOut>>("LeaveBackward");
  WayOut way{
      {made, without_partial(made->placements())},
      {made, made->dtype()},
      {}};
  if (exit.as_local) {
    way.to_local = ToLocalStep{
        exit.to,
        gradient_spec(*exit.to, without_partial(exit.to->placements()))};
  }
  node->add(local, std::move(way));
  torch::autograd::set_history(result, std::move(node));
  return result;
}

} // namespace dtensor::detail

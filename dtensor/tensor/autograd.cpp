// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/tensor/autograd_impl.h>

#include <ATen/ops/empty.h>
#include <dtensor/layout/spec_impl.h>
#include <dtensor/tensor/layout_steps_impl.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/replica_observer_impl.h>
#include <dtensor/tensor/wrap_impl.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <utility>
#include <vector>

namespace dtensor::detail {
namespace {

using torch::autograd::variable_list;

at::Tensor nothing(const SpecPtr& spec) {
  const auto options = at::TensorOptions()
                           .dtype(spec->dtype())
                           .device(spec->mesh().device_type());
  return wrap(at::empty({0}, options), spec);
}

// A node that returns an undefined or empty gradient to all inputs.
struct OutsideMeshBackward final : Node {
  explicit OutsideMeshBackward(std::vector<SpecPtr> s) : specs(std::move(s)) {}
  variable_list apply(variable_list&& grads) override {
    variable_list result;
    for (const auto& spec : specs) {
      result.push_back(grads[0].defined() ? nothing(spec) : at::Tensor());
    }
    return result;
  }
  std::string name() const override {
    return "OutsideMeshBackward";
  }
  std::vector<SpecPtr> specs;
};

// The backward step of to_local. The gradient is a plain tensor that the
// program computes.
struct GivenGradientStep : ToLocalStep {
  at::Tensor backward(at::Tensor grad) const {
    if (C10_UNLIKELY(replicas_observed())) {
      notify_replica_observers(
          {.kind = ReplicaKind::kGradient,
           .tensor = grad,
           .mesh = grad_spec->mesh(),
           .placements = grad_spec->placements()});
    }
    return ToLocalStep::backward(std::move(grad));
  }
};

} // namespace

SpecPtr replicated_spec(const Spec& like, const at::Tensor& plain) {
  if (!has_dense_format(plain)) {
    refuse_format("DTensor", "an operator takes or returns", plain);
  }
  return Spec::make(
      like.mesh(),
      replicated_placements(like.mesh()),
      plain.sizes(),
      plain.strides(),
      plain.scalar_type());
}

at::Tensor from_local_autograd(
    const at::Tensor& local,
    const SpecPtr& spec,
    const std::optional<Placements>& grad_placements,
    const at::Tensor& values) {
  auto result =
      values.defined() ? wrap(values, spec) : wrap_counted(local, spec, local);
  if (!records(local)) {
    return result;
  }
  return record(
      step_node(
          "FromLocalBackward",
          FromLocalStep{
              spec,
              grad_placements.value_or(without_partial(spec->placements())),
              local.is_leaf()}),
      local,
      std::move(result));
}

at::Tensor to_local_autograd(
    const at::Tensor& dtensor,
    const std::optional<Placements>& grad_placements) {
  if (!records(dtensor)) {
    return local_counted(dtensor);
  }
  const auto& spec = spec_of(dtensor);
  return record(
      step_node(
          "ToLocalBackward",
          GivenGradientStep{ToLocalStep{
              spec,
              gradient_spec(
                  *spec,
                  grad_placements.value_or(
                      without_partial(spec->placements()))),
              dtensor.is_leaf()}}),
      dtensor,
      alias(local_of(dtensor), dtensor));
}

at::Tensor empty_on_other_ranks(at::TensorList inputs, const SpecPtr& spec) {
  auto result = nothing(spec);
  if (!inputs.empty()) {
    std::vector<SpecPtr> specs;
    for (const auto& input : inputs) {
      specs.push_back(spec_of(input));
    }
    auto node = make_node<OutsideMeshBackward>(std::move(specs));
    node->set_next_edges(torch::autograd::collect_next_edges(inputs.vec()));
    torch::autograd::set_history(result, std::move(node));
  }
  return result;
}

at::Tensor redistribute_autograd(
    at::Tensor dtensor,
    const SpecPtr& to,
    const RedistributeMode& mode) {
  const SpecPtr from = spec_of(dtensor);
  const bool changes_nothing = from == to ||
      (from->placements() == to->placements() && from->dtype() == to->dtype());
  if (changes_nothing && !(mode.always_records && records(dtensor))) {
    return dtensor;
  }
  NodeHolder<StepNode<RedistributeStep>> node;
  if (records(dtensor)) { // checked before the tensor is moved
    node = step_node(
        "RedistributeBackward",
        RedistributeStep{
            from,
            mode.backward_dtype.value_or(dtensor.scalar_type()),
            mode.async_op || mode.async_backward});
    node->set_next_edges(torch::autograd::collect_next_edges(dtensor));
  }
  auto result = mode.async_op && !changes_nothing
      ? cast_and_redistribute_async(std::move(dtensor), to)
      : cast_and_redistribute(dtensor, to);
  if (node != nullptr) {
    torch::autograd::set_history(result, std::move(node));
  }
  return result;
}

at::Tensor replicated_on_mesh(const Spec& like, const at::Tensor& plain) {
  const auto local = like.mesh().contains_this_rank()
      ? plain
      : plain.reshape({-1}).narrow(0, 0, 0);
  return from_local_autograd(local, replicated_spec(like, plain));
}

} // namespace dtensor::detail

// SPDX-License-Identifier: BSD-3-Clause
// The one path of every operator: decide -> redistribute the inputs -> local
// operator -> wrap the results.
#include <dtensor/ops/slot_impl.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/stack_impl.h>
#include <dtensor/ops/view_result_impl.h>
#include <dtensor/ops/with_boundary_impl.h>
#include <dtensor/redistribute/execute.h>
#include <dtensor/tensor/autograd_impl.h>
#include <dtensor/tensor/meta_impl.h>

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

namespace dtensor::detail {
namespace {

// A spec on the call's mesh; taken before the arguments turn local.
SpecPtr any_spec(
    const Decision& decision,
    const torch::jit::Stack& stack,
    size_t num_args) {
  if (!decision.outputs.empty() && decision.outputs[0] != nullptr) {
    return decision.outputs[0];
  }
  SpecPtr found;
  visit_tensors(
      last_args(stack, num_args), [&](const at::Tensor& t, size_t, int) {
        if (found == nullptr && is_dtensor(t)) {
          found = spec_of(t);
        }
      });
  return found;
}

SpecPtr replicated_spec(const Spec& like, const at::Tensor& result) {
  const Placements whole(like.placements().size(), Replicate());
  return Spec::make(
      like.mesh(),
      whole,
      result.sizes(),
      result.strides(),
      result.scalar_type());
}

at::Tensor
local_input(const at::Tensor& t, const SpecPtr& wanted, const Spec& mesh_like) {
  if (!is_dtensor(t)) {
    return wanted == nullptr
        ? t
        : redistribute_local(t, replicated_spec(mesh_like, t), wanted);
  }
  return wanted == nullptr
      ? local_of(t)
      : redistribute_local(local_of(t), spec_of(t), wanted);
}

// Replaces every tensor result by `wrap_result(tensor, index)`.
template <class Wrap>
void map_results(
    torch::jit::Stack* stack,
    size_t num_returns,
    const Wrap& wrap_result) {
  size_t index = 0;
  for (size_t i = stack->size() - num_returns; i < stack->size(); ++i) {
    auto& value = (*stack)[i];
    if (value.isTensor()) {
      const auto at = index++;
      if (value.toTensor().defined()) {
        value = wrap_result(std::move(value).toTensor(), at);
      }
    } else if (value.isTensorList()) {
      auto list = value.toTensorVector();
      for (auto& t : list) {
        t = wrap_result(std::move(t), index++);
      }
      value = std::move(list);
    }
  }
}

void set_args(
    const OpInfo& info,
    const Decision& decision,
    torch::jit::Stack* stack) {
  const auto base = stack->size() - info.num_args;
  for (const auto& [arg, value] : decision.args) {
    (*stack)[base + arg] = value;
  }
}

void call_local(
    const OpInfo& info,
    const Decision& decision,
    torch::jit::Stack* stack) {
  if (info.rule != nullptr && info.rule->local_kernel) {
    info.rule->local_kernel(info.op, decision, stack);
  } else {
    info.op.callBoxed(stack);
  }
}

const SpecPtr& output_spec(const Decision& decision, size_t index) {
  TORCH_INTERNAL_ASSERT(
      index < decision.outputs.size() && decision.outputs[index] != nullptr,
      "a result without a layout");
  return decision.outputs[index];
}

// A rank outside the mesh has nothing to compute. `inputs` are those that
// require gradients, if this is above autograd.
void outside_mesh(
    const OpInfo& info,
    const Decision& decision,
    const SpecPtr& any,
    at::TensorList inputs,
    torch::jit::Stack* stack) {
  DTENSOR_CHECK(
      !decision.shapes_from_results && info.num_returns > 0,
      info.name,
      "has no value on rank ",
      any->mesh().get_rank(),
      ", which is outside the mesh ",
      any->mesh(),
      ". Call it on ranks of the mesh only.");
  const auto self =
      info.in_place ? (*stack)[stack->size() - info.num_args] : c10::IValue();
  torch::jit::drop(*stack, info.num_args);
  if (info.in_place) {
    stack->push_back(self);
    return;
  }
  for (const auto& spec : decision.outputs) {
    stack->emplace_back(spec ? nothing_from(inputs, spec) : at::Tensor());
  }
}

// What writes to a tensor counts, but for one that gives it another shape.
void before_write(const OpInfo& info, const at::Tensor& self) {
  if (is_dtensor(self) && !info.inplace_view) {
    refuse_write_to_copy(info.name, self);
    count_write(self);
  }
}

// In inference mode too, where a view of a normal tensor is a normal tensor.
at::Tensor wrap_normal(at::Tensor local, SpecPtr spec) {
  const c10::InferenceMode normal(false);
  return wrap(std::move(local), std::move(spec));
}

void run(
    const OpInfo& info,
    const Decision& decision,
    torch::jit::Stack* stack) {
  const auto any = any_spec(decision, *stack, info.num_args);
  if (C10_UNLIKELY(!any->mesh().contains_this_rank())) {
    outside_mesh(info, decision, any, {}, stack);
    return;
  }
  auto* const args = stack->data() + (stack->size() - info.num_args);
  const bool normal_view = info.is_view && c10::InferenceMode::is_enabled() &&
      args[0].isTensor() && !args[0].toTensor().is_inference();
  at::Tensor self;
  Viewed viewed;
  std::shared_ptr<const Boundaries> boundaries;
  if (info.in_place) {
    self = args[0].toTensor();
    before_write(info, self);
  } else if (
      info.is_view && args[0].isTensor() && is_dtensor(args[0].toTensor())) {
    viewed = Viewed(args[0].toTensor());
  }
  if (!info.in_place && info.carries_boundaries && args[0].isTensor()) {
    boundaries = meta_of(args[0].toTensor()).boundaries;
  }
  map_tensors(args, info.num_args, [&](const at::Tensor& t, size_t i) {
    return local_input(t, decision.inputs[i], *any);
  });
  set_args(info, decision, stack);
  call_local(info, decision, stack);
  map_results(stack, info.num_returns, [&](at::Tensor local, size_t i) {
    if (info.in_place && i == 0 && !info.inplace_view) {
      return self;
    }
    auto spec = decision.shapes_from_results ? replicated_spec(*any, local)
                                             : output_spec(decision, i);
    if (info.in_place && i == 0) {
      rewrap(self, std::move(local), std::move(spec));
      return self;
    }
    const auto place = viewed.place_of(local, decision, i);
    auto result = normal_view ? wrap_normal(std::move(local), std::move(spec))
                              : wrap(std::move(local), std::move(spec));
    if (boundaries != nullptr) {
      meta_of(result).boundaries = boundaries;
    }
    viewed.finish(result, place);
    return result;
  });
}

void dispatch_below_boundary(const OpInfo& info, torch::jit::Stack* stack) {
  if (info.rule != nullptr && info.rule->kernel) {
    info.rule->kernel(info.op, stack);
    return;
  }
  run(info, *decide(info, *stack), stack);
}

bool needs_grad(const OpInfo& info, const torch::jit::Stack& stack) {
  if (!c10::GradMode::is_enabled()) {
    return false;
  }
  bool any = false;
  visit_tensors(
      last_args(stack, info.num_args),
      [&](const at::Tensor& t, size_t, int) { any |= t.requires_grad(); });
  return any;
}

at::Tensor region_input(
    const at::Tensor& t,
    const Decision& decision,
    size_t index,
    const Spec& any) {
  const auto& wanted = decision.inputs[index];
  if (!is_dtensor(t)) {
    return wanted == nullptr
        ? t
        : redistribute_local(t.detach(), replicated_spec(any, t), wanted);
  }
  const auto placed = wanted == nullptr ? t : redistribute_autograd(t, wanted);
  return to_local_autograd(
      placed,
      decision.grads.empty() ? std::nullopt
                             : std::optional(decision.grads[index]));
}

std::vector<at::Tensor> with_gradients(
    const OpInfo& info,
    const torch::jit::Stack& stack) {
  std::vector<at::Tensor> found;
  visit_tensors(
      last_args(stack, info.num_args), [&](const at::Tensor& t, size_t, int) {
        if (is_dtensor(t) && t.requires_grad()) {
          found.push_back(t);
        }
      });
  return found;
}

void region_below_boundary(
    const OpInfo& info,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack) {
  if (!needs_grad(info, *stack)) {
    at::AutoDispatchBelowADInplaceOrView below;
    dispatch_below_boundary(info, stack);
    return;
  }
  if (info.rule->kernel) {
    info.rule->kernel(info.op, stack);
    return;
  }
  const auto decision = decide(info, *stack);
  if (takes_stock_autograd(info, *decision, last_args(*stack, info.num_args))) {
    info.stock->callBoxed(info.op, keys, stack);
    return;
  }
  const auto any = any_spec(*decision, *stack, info.num_args);
  if (C10_UNLIKELY(!any->mesh().contains_this_rank())) {
    outside_mesh(info, *decision, any, with_gradients(info, *stack), stack);
    return;
  }
  auto* const args = stack->data() + (stack->size() - info.num_args);
  map_tensors(args, info.num_args, [&](const at::Tensor& t, size_t i) {
    return region_input(t, *decision, i, *any);
  });
  set_args(info, *decision, stack);
  call_local(info, *decision, stack);
  map_results(stack, info.num_returns, [&](at::Tensor local, size_t i) {
    const auto spec = decision->shapes_from_results
        ? replicated_spec(*any, local)
        : output_spec(*decision, i);
    return from_local_autograd(local, spec);
  });
}

} // namespace

// A region costs a node of the graph for each input and output. A call that
// needs no communication does without: LibTorch's formula for its gradients
// calls operators that have rules. Of products only those of matrices: others
// have operands to flatten, which would have to keep their sharding.
bool takes_stock_autograd(
    const OpInfo& info,
    const Decision& decision,
    c10::ArrayRef<c10::IValue> args) {
  if (!info.stock || !is_local_only(info, decision)) {
    return false;
  }
  bool fits = true;
  visit_tensors(args, [&](const at::Tensor& t, size_t arg, int) {
    const bool is_bias = info.num_args > 2 && t.dim() == 1;
    const bool is_matrix = t.dim() == 2 || (is_bias && arg != 1);
    fits &= is_dtensor(t) && (is_matrix || !info.multiplies_matrices);
  });
  return fits;
}

void dispatch(const OpInfo& info, torch::jit::Stack* stack) {
  if (C10_UNLIKELY(info.adds_in_place) && add_module_bias(stack)) {
    return; // in inference mode, where there is no autograd key
  }
  with_boundary(info, stack, [&] { dispatch_below_boundary(info, stack); });
}

void dispatch_region(
    const OpInfo& info,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack) {
  with_boundary(info, stack, [&] { region_below_boundary(info, keys, stack); });
}

} // namespace dtensor::detail

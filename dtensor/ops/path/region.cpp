// SPDX-License-Identifier: BSD-3-Clause
// Operators that run as a region: LibTorch's autograd records their local call,
// and tensor/region.cpp connects the recorded graph with the DTensors.
#include <dtensor/ops/path/dispatch_impl.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <dtensor/layout/spec_impl.h>
#include <dtensor/ops/path/decide_impl.h>
#include <dtensor/ops/path/local_call_impl.h>
#include <dtensor/ops/path/noting_errors_impl.h>
#include <dtensor/ops/path/stack_impl.h>
#include <dtensor/ops/path/with_boundary_impl.h>
#include <dtensor/ops/scopes/explicit_redistribution_impl.h>
#include <dtensor/ops/scopes/replicated_impl.h>
#include <dtensor/tensor/autograd_impl.h>
#include <dtensor/tensor/layout_steps_impl.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/region_impl.h>

namespace dtensor::detail {
namespace {

std::vector<at::Tensor> with_gradients(
    const OpInfo& info,
    const torch::jit::Stack& stack) {
  auto tensors = tensors_in(last_args(stack, info.num_args));
  std::erase_if(tensors, [](const at::Tensor& t) {
    return !is_dtensor(t) || !t.requires_grad();
  });
  return tensors;
}

// Returns the conversions of the DTensors among the arguments. `before` is the
// conversion at the module's boundary, without an origin if there is none.
Conversions conversions_of(
    const OpInfo& info,
    const Decision& decision,
    c10::ArrayRef<c10::IValue> args,
    const Conversion& before) {
  Conversions inputs;
  size_t index = 0;
  visit_tensors(args, [&](const at::Tensor& t, size_t arg, int) {
    const size_t i = index++;
    if (!is_dtensor(t)) {
      return;
    }
    // If a decision has no gradient layouts, all ranks compute the same values.
    const auto& spec = *spec_of(t);
    auto gradient = decision.grads.empty()
        ? gradient_spec(spec, without_partial(spec.placements()))
        : decision.grads[i];
    auto input = conversion_to(t, decision.inputs[i], std::move(gradient));
    if (before.origin.defined() && arg == info.traits.boundary->input) {
      input.origin = before.origin;
      input.from = before.from;
    }
    inputs.push_back(std::move(input));
  });
  return inputs;
}

bool is_recorded_number(const at::Tensor& t) {
  return !is_dtensor(t) && t.numel() == 1 && records(t);
}

// Turns plain tensors of one element that require a gradient into DTensors,
// because each rank's local call gives only its own term of the gradient.
void replicate_recorded(c10::IValue* args, size_t num_args) {
  const c10::ArrayRef<c10::IValue> all(args, num_args);
  if (C10_LIKELY(!any_tensor(all, is_recorded_number))) {
    return;
  }
  const auto like = first_spec(all);
  map_tensors(args, num_args, [&](const at::Tensor& t, size_t) -> at::Tensor {
    return is_recorded_number(t) ? replicated_on_mesh(*like, t) : t;
  });
}

void run_region(
    const OpInfo& info,
    const Decision& decision,
    const Spec& any,
    const Boundary* boundary,
    const Conversion& before,
    torch::jit::Stack* stack) {
  auto* const args = mutable_args(stack, info.num_args);
  const Region region(
      conversions_of(info, decision, last_args(*stack, info.num_args), before));
  auto local = region.locals().begin();
  map_tensors(args, info.num_args, [&](const at::Tensor& t, size_t i) {
    if (is_dtensor(t)) {
      return *local++;
    }
    const auto& wanted = decision.inputs[i];
    return wanted == nullptr ? t : placed_plain(t.detach(), wanted, any);
  });
  call_local(info, decision, stack);
  const bool may_fuse = info.num_returns == 1 && stack->back().isTensor() &&
      decision.has_equal_shards && !calls_kernel(info, decision);
  map_results(stack, info.num_returns, [&](const at::Tensor& t, size_t i) {
    const auto made = result_spec(info, decision, any, t, i);
    const auto exit =
        boundary == nullptr ? ResultConversion() : boundary->exit_of(made);
    return region.convert_result(t, made, exit, may_fuse);
  });
}

void region_in_boundary(
    const OpInfo& info,
    c10::DispatchKeySet keys,
    const Boundary* boundary,
    const Conversion& before,
    torch::jit::Stack* stack) {
  const auto args = last_args(*stack, info.num_args);
  // A kernel may return views, which LibTorch tracks above autograd.
  const bool by_kernel = info.rule->runs_kernel(args);
  if (!wants_gradients(args) && !records(before.origin) &&
      (!by_kernel || info.in_place)) {
    at::AutoDispatchBelowADInplaceOrView below;
    dispatch_in_boundary(info, stack);
    convert_unrecorded(boundary, stack);
    return;
  }
  if (by_kernel) {
    bring_up_to_date(args);
    noting_errors(first_spec(args), [&] { info.rule->kernel(info.op, stack); });
    return;
  }
  replicate_recorded(mutable_args(stack, info.num_args), info.num_args);
  const auto decision = decide(info, *stack);
  if (boundary == nullptr && uses_native_autograd(info, *decision, args)) {
    info.stock->callBoxed(info.op, keys, stack);
    return;
  }
  if (C10_UNLIKELY(decision->redistributes)) {
    before_redistributing(info, *decision, args);
  }
  const auto any = any_spec(*decision, *stack, info.num_args);
  if (C10_UNLIKELY(!any->mesh().contains_this_rank())) {
    outside_mesh(info, *decision, any, with_gradients(info, *stack), stack);
    return;
  }
  noting_errors(
      any, [&] { run_region(info, *decision, *any, boundary, before, stack); });
}

} // namespace

// A region adds autograd nodes that prepare each tensor for the local call. A
// call that needs no communication can avoid these nodes, because LibTorch's
// gradient formula calls operators that have rules. Products qualify only for
// matrices: other products would flatten operands, which would have to keep
// their sharding.
bool uses_native_autograd(
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
    fits &= is_dtensor(t) && (is_matrix || !info.traits.product);
  });
  return fits;
}

void dispatch_region(
    const OpInfo& info,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack) {
  with_boundary(
      info, stack, [&](const Boundary* boundary, const Conversion& before) {
        region_in_boundary(info, keys, boundary, before, stack);
      });
}

} // namespace dtensor::detail

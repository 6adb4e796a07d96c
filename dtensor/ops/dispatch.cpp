// SPDX-License-Identifier: BSD-3-Clause
// The one path of every operator: decide -> redistribute the inputs -> local
// operator -> wrap the results.
#include <dtensor/ops/slot_impl.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_strided.h>
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/plain_operand_impl.h>
#include <dtensor/ops/replicated_impl.h>
#include <dtensor/ops/stack_impl.h>
#include <dtensor/ops/view_result_impl.h>
#include <dtensor/ops/with_boundary_impl.h>
#include <dtensor/redistribute/execute.h>
#include <dtensor/tensor/autograd_impl.h>
#include <dtensor/tensor/meta_impl.h>

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
  return first_spec(last_args(stack, num_args));
}

// A plain tensor in the layout that is wanted of it. A number in disguise
// stays one.
at::Tensor placed_plain(
    const at::Tensor& plain,
    const SpecPtr& wanted,
    const Spec& mesh_like) {
  auto placed =
      redistribute_local(plain, replicated_spec(mesh_like, plain), wanted);
  if (plain.unsafeGetTensorImpl()->is_wrapped_number()) {
    placed.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return placed;
}

at::Tensor
local_input(const at::Tensor& t, const SpecPtr& wanted, const Spec& mesh_like) {
  if (!is_dtensor(t)) {
    return wanted == nullptr ? t : placed_plain(t, wanted, mesh_like);
  }
  return wanted == nullptr
      ? local_of(t)
      : redistribute_local(local_of(t), spec_of(t), wanted);
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

// As the schema has them: one list, or one by one.
void push_results(
    const OpInfo& info,
    std::vector<at::Tensor> results,
    torch::jit::Stack* stack) {
  const auto& returns = info.op.schema().returns();
  if (returns[0].type()->kind() == c10::TypeKind::ListType) {
    TORCH_INTERNAL_ASSERT(returns.size() == 1, info.name, ": several lists");
    stack->emplace_back(std::move(results));
    return;
  }
  for (auto& result : results) {
    stack->emplace_back(std::move(result));
  }
}

at::Tensor empty_meta(const Spec& spec) {
  return at::empty_strided(
      spec.local_sizes(),
      dense_strides(spec.local_sizes(), spec.strides()),
      at::TensorOptions().dtype(spec.dtype()).device(c10::kMeta));
}

// What an operator on parts without data results in, where LibTorch has no
// kernel for those: the shapes are known.
void results_without_data(
    const OpInfo& info,
    const Decision& decision,
    torch::jit::Stack* stack) {
  std::vector<at::Tensor> results;
  for (const auto& spec : decision.outputs) {
    results.push_back(spec ? empty_meta(*spec) : at::Tensor());
  }
  push_results(info, std::move(results), stack);
}

void call_local(
    const OpInfo& info,
    const Decision& decision,
    torch::jit::Stack* stack) {
  const auto base = stack->size() - info.num_args;
  const bool no_data = info.num_args > 0 && (*stack)[base].isTensor() &&
      (*stack)[base].toTensor().defined() &&
      (*stack)[base].toTensor().is_meta();
  try {
    if (info.rule != nullptr && info.rule->local_kernel) {
      info.rule->local_kernel(info.op, decision, stack);
    } else {
      info.op.callBoxed(stack);
    }
  } catch (const c10::NotImplementedError&) {
    if (!no_data || decision.shapes_from_results) {
      throw;
    }
    stack->resize(base);
    results_without_data(info, decision, stack);
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
  const auto self = (*stack)[stack->size() - info.num_args];
  torch::jit::drop(*stack, info.num_args);
  if (info.in_place) {
    stack->push_back(self);
    return;
  }
  std::vector<at::Tensor> results;
  for (const auto& spec : decision.outputs) {
    results.push_back(spec ? nothing_from(inputs, spec) : at::Tensor());
    if (info.traits.carries) {
      meta_of(results.back()).boundaries = meta_of(self.toTensor()).boundaries;
    }
  }
  push_results(info, std::move(results), stack);
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

// What results take over from the first argument: it is written, or viewed, or
// a parameter on which styles ride. Made before the arguments turn local.
class FirstArgument {
 public:
  FirstArgument(const OpInfo& info, const c10::IValue* args) {
    if (info.num_args == 0 || !args[0].isTensor()) {
      return;
    }
    const auto& first = args[0].toTensor();
    if (info.in_place) {
      written_ = first;
      before_write(info, first);
      return;
    }
    if (info.is_view) {
      is_normal_ =
          c10::InferenceMode::is_enabled() && !first.is_inference();
      if (is_dtensor(first)) {
        viewed_ = Viewed(first);
      }
    }
    if (info.traits.carries) {
      refresh_boundaries(first, BoundaryKind::kLinear);
      boundaries_ = meta_of(first).boundaries;
    }
  }

  /// It takes the local result over, which has another shape.
  at::Tensor rewritten(at::Tensor local, SpecPtr spec) const {
    rewrap(written_, std::move(local), std::move(spec));
    return written_;
  }
  const at::Tensor& written() const {
    return written_;
  }
  at::Tensor result(
      at::Tensor local,
      SpecPtr spec,
      const Decision& decision,
      size_t index) const {
    const auto place = viewed_.place_of(local, decision, index);
    auto made = is_normal_ ? wrap_normal(std::move(local), std::move(spec))
                           : wrap(std::move(local), std::move(spec));
    if (boundaries_ != nullptr) {
      meta_of(made).boundaries = boundaries_;
    }
    viewed_.finish(made, place);
    return made;
  }

 private:
  at::Tensor written_;
  Viewed viewed_;
  bool is_normal_ = false;
  std::shared_ptr<const Boundaries> boundaries_;
};

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
  const FirstArgument first(info, args);
  map_tensors(args, info.num_args, [&](const at::Tensor& t, size_t i) {
    return local_input(t, decision.inputs[i], *any);
  });
  set_args(info, decision, stack);
  call_local(info, decision, stack);
  map_results(stack, info.num_returns, [&](at::Tensor local, size_t i) {
    const bool is_first = info.in_place && i == 0;
    if (is_first && !info.inplace_view) {
      return first.written();
    }
    auto spec = decision.shapes_from_results ? replicated_spec(*any, local)
                                             : output_spec(decision, i);
    return is_first
        ? first.rewritten(std::move(local), std::move(spec))
        : first.result(std::move(local), std::move(spec), decision, i);
  });
}

void dispatch_below_boundary(const OpInfo& info, torch::jit::Stack* stack) {
  if (info.rule != nullptr && info.rule->kernel) {
    info.rule->kernel(info.op, stack);
    return;
  }
  run(info, *decide(info, *stack), stack);
}

at::Tensor region_input(
    const at::Tensor& t,
    const Decision& decision,
    size_t index,
    const Spec& any) {
  const auto& wanted = decision.inputs[index];
  if (!is_dtensor(t)) {
    return wanted == nullptr ? t : placed_plain(t.detach(), wanted, any);
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
  if (!wants_gradients(last_args(*stack, info.num_args))) {
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
    fits &= is_dtensor(t) && (is_matrix || !info.traits.product);
  });
  return fits;
}

void dispatch(const OpInfo& info, torch::jit::Stack* stack) {
  if (C10_UNLIKELY(info.traits.adds_bias) && add_module_bias(stack)) {
    return; // in inference mode, where there is no autograd key
  }
  if (C10_UNLIKELY(info.traits.takes_plain)) {
    place_same_plain(info, stack->data() + (stack->size() - info.num_args));
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

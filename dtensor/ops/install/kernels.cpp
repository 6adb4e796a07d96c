// SPDX-License-Identifier: BSD-3-Clause
// Selection of the kernels of an operator.
//
// Operators that LibTorch decomposes above autograd (CompositeImplicitAutograd)
// are regions if they have a rule, intercepted at the autograd key. Without a
// rule they keep their decomposition, except that on replicated tensors they
// run the plain operator. All other operators get a slot at the backend key,
// because a composite kernel would otherwise take precedence over a fallback
// and read storage.
#include <dtensor/ops/install/kernels_impl.h>

#include <dtensor/error.h>
#include <dtensor/ops/path/dispatch_impl.h>
#include <dtensor/ops/path/stack_impl.h>
#include <dtensor/ops/scopes/replicated_impl.h>
#include <dtensor/ops/variants/variants_impl.h>
#include <dtensor/tensor/is_dtensor.h>

#include <torch/library.h>

#include <algorithm>
#include <memory>
#include <optional>

namespace dtensor::detail {
namespace {

using c10::DispatchKey;

// Returns the kernel of op.out without a rule. It runs op if op exists, else
// op.out on replicated inputs. LibTorch's kernel of a composite operator
// handles all other calls.
torch::CppFunction out_kernel(
    const std::shared_ptr<const OpInfo>& info,
    bool above_autograd) {
  const auto other = is_composite(info->op)
      ? std::optional(native_kernel(info->op, above_autograd))
      : std::nullopt;
  const auto functional = functional_of_out(info->op);
  return boxed_kernel([=](const c10::OperatorHandle& op,
                          c10::DispatchKeySet keys,
                          torch::jit::Stack* stack) {
    const auto args = last_args(*stack, info->num_args);
    DTENSOR_CHECK(
        !above_autograd || !wants_gradients(args),
        "[{}] writes to an out argument, so its result has no gradient, but an "
        "argument requires grad. Call it without out, or with gradients "
        "disabled (NoGradGuard, torch.no_grad()).",
        info->name);
    if (functional) {
      run_out_variant(op, *functional, stack);
    } else if (!info->random && inputs_are_replicated(op.schema(), args)) {
      run_out_on_replicated(*info, stack);
    } else if (other) {
      other->callBoxed(op, keys, stack);
    } else {
      dispatch(*info, stack);
    }
  });
}

// Returns the kernel of op_ whose gradient formula may create plain tensors. It
// runs op, `functional`, which avoids them, if gradients are needed; otherwise
// it runs LibTorch's kernel.
torch::CppFunction in_place_kernel(
    const std::shared_ptr<const OpInfo>& info,
    const c10::OperatorHandle& functional) {
  const auto other = native_kernel(info->op, /*above_autograd=*/true);
  return boxed_kernel([=](const c10::OperatorHandle& op,
                          c10::DispatchKeySet keys,
                          torch::jit::Stack* stack) {
    if (!wants_gradients(last_args(*stack, info->num_args)) ||
        !run_in_place_variant(*info, functional, stack)) {
      other.callBoxed(op, keys, stack);
    }
  });
}

// Returns the kernel of a rule for an operator that a module may call with a
// plain tensor that the module created, argument `made`.
torch::CppFunction implicit_state_kernel(
    const std::shared_ptr<const OpInfo>& info,
    size_t made,
    bool above_autograd) {
  return boxed_kernel([info, made, slot = SlotKernel(info, above_autograd)](
                          const c10::OperatorHandle& op,
                          c10::DispatchKeySet keys,
                          torch::jit::Stack* stack) mutable {
    distribute_module_created(
        op.schema(), made, stack->data() + (stack->size() - info->num_args));
    slot(op, keys, stack);
  });
}

// Returns true for kernels that call other operators, one list element at a
// time.
bool decomposes_by_itself(const c10::OperatorHandle& op) {
  return op.schema().name().starts_with("aten::_foreach_") &&
      op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd);
}

bool writes_out(const c10::FunctionSchema& schema) {
  const auto& arguments = schema.arguments();
  return std::ranges::any_of(
      arguments, [](const auto& a) { return a.is_out(); });
}

using When = ReplicatedKernel::When;

torch::CppFunction replicated_kernel(
    const std::shared_ptr<const OpInfo>& info,
    bool above_autograd,
    When when) {
  return torch::CppFunction::makeFromBoxedFunctor(
      std::make_unique<ReplicatedKernel>(
          info, native_kernel(info->op, above_autograd), when));
}

// Returns true if LibTorch's gradient formula may create plain tensors.
bool formula_may_make_plain(const OpInfo& info) {
  return (info.rule == nullptr || info.traits.gradient_makes_plain) &&
      !info.random && info.op.hasKernelForDispatchKey(DispatchKey::Autograd);
}

// Returns true if the gradient on replicated tensors may be that of the plain
// operator.
bool may_take_plain_gradient(const OpInfo& info) {
  return formula_may_make_plain(info) && is_functional(info.op.schema());
}

// Returns op for op_ if the gradient of op may be used.
std::optional<c10::OperatorHandle> functional_for_gradients(
    const OpInfo& info) {
  return formula_may_make_plain(info) && info.in_place && !info.inplace_view &&
          info.num_returns == 1
      ? functional_of_in_place(info.op)
      : std::nullopt;
}

torch::CppFunction kernel_of(
    const std::shared_ptr<const OpInfo>& info,
    bool above_autograd) {
  if (const auto* fast = find_fast_op(info->op.operator_name())) {
    return fast->make(info, above_autograd);
  }
  if (const auto made = made_by_modules(*info)) {
    return implicit_state_kernel(info, *made, above_autograd);
  }
  return torch::CppFunction::makeFromBoxedFunctor(
      std::make_unique<SlotKernel>(info, above_autograd));
}

Kernels out_kernels(const std::shared_ptr<const OpInfo>& info) {
  Kernels kernels{out_kernel(info, false), std::nullopt, info};
  if (is_composite(info->op) ||
      !info->op.hasKernelForDispatchKey(DispatchKey::Autograd)) {
    kernels.above_autograd = out_kernel(info, true);
  }
  return kernels;
}

// Returns the kernel above autograd, for operators that need more than
// LibTorch's own kernel.
std::optional<torch::CppFunction> autograd_kernel(
    const std::shared_ptr<const OpInfo>& info) {
  if (info->is_region) {
    return kernel_of(info, true);
  }
  if (auto plain_gradient = plain_gradient_kernel(info)) {
    return plain_gradient;
  }
  if (may_take_plain_gradient(*info)) {
    return replicated_kernel(info, true, When::kForGradients);
  }
  if (const auto functional = functional_for_gradients(*info)) {
    return in_place_kernel(info, *functional);
  }
  return std::nullopt;
}

} // namespace

bool is_composite(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd);
}

bool keeps_its_kernel(const c10::OperatorHandle& op) {
  const auto& registry = RuleRegistry::global();
  if (registry.find(op.operator_name()) != nullptr) {
    return false;
  }
  return registry.keeps_composite(op.operator_name()) ||
      decomposes_by_itself(op) ||
      (is_composite(op) && !is_functional(op.schema()) &&
       !writes_out(op.schema()));
}

// Returns LibTorch's kernel, computed for an unused backend key: the operator's
// dispatch table has LibTorch's original entry there.
c10::SafeKernelFunction native_kernel(
    const c10::OperatorHandle& op,
    bool above_autograd) {
  return op.getComputedKernelForDispatchKey(
      above_autograd ? kUnusedAutogradKey : kUnusedBackendKey);
}

Kernels kernels_of(const c10::OperatorHandle& op) {
  if (keeps_its_kernel(op)) {
    return {};
  }
  const auto info = std::make_shared<OpInfo>(op);
  if (info->rule == nullptr && info->is_out) {
    return out_kernels(info);
  }
  if (info->rule == nullptr && is_composite(op)) {
    return {
        replicated_kernel(info, false, When::kAlways),
        replicated_kernel(info, true, When::kAlways),
        info};
  }
  return {kernel_of(info, false), autograd_kernel(info), info};
}

// The call has the key of the target device, and Meta precedes the key of
// DTensors.
torch::CppFunction to_copy_kernel_of_meta(bool above_autograd) {
  const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::_to_copy", "");
  const auto stock = native_kernel(op, above_autograd);
  return boxed_kernel([=](const c10::OperatorHandle& called,
                          c10::DispatchKeySet keys,
                          torch::jit::Stack* stack) {
    const auto args = last_args(*stack, called.schema().arguments().size());
    if (is_dtensor(args[0].toTensor())) {
      called.redispatchBoxed(
          keys.remove_backend(c10::BackendComponent::MetaBit), stack);
    } else {
      stock.callBoxed(called, keys, stack);
    }
  });
}

} // namespace dtensor::detail

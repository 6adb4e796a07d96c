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
#include <dtensor/ops/install/fast_ops_impl.h>
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

// Kernel of op.out without a rule. It runs op if op exists, else op.out on
// replicated inputs. `other` handles all other calls.
class OutKernel final : public c10::OperatorKernel {
 public:
  OutKernel(
      std::shared_ptr<const OpInfo> info,
      std::optional<c10::SafeKernelFunction> other,
      bool above_autograd)
      : info_(std::move(info)),
        functional_(functional_of_out(info_->op)),
        other_(std::move(other)),
        above_autograd_(above_autograd) {}

  void operator()(
      const c10::OperatorHandle& op,
      c10::DispatchKeySet keys,
      torch::jit::Stack* stack) {
    const auto args = last_args(*stack, info_->num_args);
    DTENSOR_CHECK(
        !above_autograd_ || !wants_gradients(args),
        "[{}] writes to an out argument, so its result has no gradient, but an "
        "argument requires grad. Call it without out, or with gradients "
        "disabled (NoGradGuard, torch.no_grad()).",
        info_->name);
    if (functional_) {
      run_out_variant(op, *functional_, stack);
    } else if (!info_->random && inputs_are_replicated(op.schema(), args)) {
      run_out_on_replicated(*info_, stack);
    } else if (other_) {
      other_->callBoxed(op, keys, stack);
    } else {
      dispatch(*info_, stack);
    }
  }

 private:
  std::shared_ptr<const OpInfo> info_;
  std::optional<c10::OperatorHandle> functional_;
  std::optional<c10::SafeKernelFunction> other_;
  bool above_autograd_;
};

// Kernel of op_ whose gradient formula may create plain tensors. It runs op,
// which avoids them, if gradients are needed; otherwise it runs LibTorch's
// kernel.
class InPlaceKernel final : public c10::OperatorKernel {
 public:
  InPlaceKernel(
      std::shared_ptr<const OpInfo> info,
      c10::OperatorHandle functional,
      c10::SafeKernelFunction other)
      : info_(std::move(info)),
        functional_(std::move(functional)),
        other_(std::move(other)) {}
  void operator()(
      const c10::OperatorHandle& op,
      c10::DispatchKeySet keys,
      torch::jit::Stack* stack) {
    if (!wants_gradients(last_args(*stack, info_->num_args)) ||
        !run_in_place_variant(*info_, functional_, stack)) {
      other_.callBoxed(op, keys, stack);
    }
  }

 private:
  std::shared_ptr<const OpInfo> info_;
  c10::OperatorHandle functional_;
  c10::SafeKernelFunction other_;
};

// Kernel of a rule for an operator that a module may call with a plain tensor
// that the module created.
class ImplicitStateKernel final : public c10::OperatorKernel {
 public:
  ImplicitStateKernel(
      std::shared_ptr<const OpInfo> info,
      size_t made,
      bool above_autograd)
      : made_(made),
        num_args_(info->num_args),
        slot_(std::move(info), above_autograd) {}
  void operator()(
      const c10::OperatorHandle& op,
      c10::DispatchKeySet keys,
      torch::jit::Stack* stack) {
    distribute_module_created(
        op.schema(), made_, stack->data() + (stack->size() - num_args_));
    slot_(op, keys, stack);
  }

 private:
  size_t made_;
  size_t num_args_;
  SlotKernel slot_;
};

// Kernel of _to_copy to the meta device. The call has the key of the target
// device, and Meta precedes the key of DTensors.
class ToMetaKernel final : public c10::OperatorKernel {
 public:
  explicit ToMetaKernel(c10::SafeKernelFunction stock)
      : stock_(std::move(stock)) {}
  void operator()(
      const c10::OperatorHandle& op,
      c10::DispatchKeySet keys,
      torch::jit::Stack* stack) {
    const auto& self =
        torch::jit::peek(*stack, 0, op.schema().arguments().size());
    if (is_dtensor(self.toTensor())) {
      op.redispatchBoxed(
          keys.remove_backend(c10::BackendComponent::MetaBit), stack);
    } else {
      stock_.callBoxed(op, keys, stack);
    }
  }

 private:
  c10::SafeKernelFunction stock_;
};

bool starts_with(const std::string& text, std::string_view prefix) {
  return text.compare(0, prefix.size(), prefix) == 0;
}

// Returns true for kernels that call other operators, one list element at a
// time.
bool decomposes_by_itself(const c10::OperatorHandle& op) {
  return starts_with(op.schema().name(), "aten::_foreach_") &&
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
    return torch::CppFunction::makeFromBoxedFunctor(
        std::make_unique<ImplicitStateKernel>(info, *made, above_autograd));
  }
  return torch::CppFunction::makeFromBoxedFunctor(
      std::make_unique<SlotKernel>(info, above_autograd));
}

Kernels out_kernels(const std::shared_ptr<const OpInfo>& info) {
  const auto kernel = [&](bool above_autograd) {
    return torch::CppFunction::makeFromBoxedFunctor(std::make_unique<OutKernel>(
        info,
        is_composite(info->op)
            ? std::optional(native_kernel(info->op, above_autograd))
            : std::nullopt,
        above_autograd));
  };
  Kernels kernels{kernel(false), std::nullopt, info};
  if (is_composite(info->op) ||
      !info->op.hasKernelForDispatchKey(DispatchKey::Autograd)) {
    kernels.above_autograd = kernel(true);
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
    return torch::CppFunction::makeFromBoxedFunctor(
        std::make_unique<InPlaceKernel>(
            info, *functional, native_kernel(info->op, true)));
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

torch::CppFunction to_copy_kernel_of_meta(bool above_autograd) {
  const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::_to_copy", "");
  return torch::CppFunction::makeFromBoxedFunctor(
      std::make_unique<ToMetaKernel>(native_kernel(op, above_autograd)));
}

} // namespace dtensor::detail

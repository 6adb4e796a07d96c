// SPDX-License-Identifier: BSD-3-Clause
// Installs kernels for every operator when the library loads. Installs new
// kernels for an operator that gets another rule.
#include <dtensor/ops/install/kernels_impl.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <dtensor/api.h>
#include <dtensor/error.h>
#include <dtensor/ops/path/dispatch_impl.h>
#include <dtensor/ops/path/stack_impl.h>
#include <dtensor/ops/scopes/replicated_impl.h>
#include <dtensor/ops/unsharded/interceptor_impl.h>
#include <dtensor/torch_internals.h>

#include <torch/library.h>

#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>

namespace dtensor::detail {
namespace {

using c10::DispatchKey;

// Returns the OpInfo of operators of other libraries, and of operators
// registered after this library was loaded.
std::shared_ptr<OpInfo> info_of_other(const c10::OperatorHandle& op) {
  static std::mutex mutex;
  static std::unordered_map<c10::OperatorName, std::shared_ptr<OpInfo>> infos;
  const std::lock_guard lock(mutex);
  auto& slot = infos[op.operator_name()];
  if (slot == nullptr) {
    slot = std::make_shared<OpInfo>(op);
  }
  return slot;
}

void fallback(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet,
    torch::jit::Stack* stack) {
  dispatch(*info_of_other(op), stack);
}

// Fallback at the autograd key. Without it, an operator that LibTorch's
// autograd does not support would have no kernel at this key. The gradient is
// that of the plain operator.
void autograd_fallback(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet,
    torch::jit::Stack* stack) {
  const auto info = info_of_other(op);
  if (wants_gradients(last_args(*stack, info->num_args))) {
    replicate_on_missing_rule(*info, stack);
    if (is_functional(op.schema()) && compute_replicated(*info, stack)) {
      return;
    }
    DTENSOR_CHECK_NOT_IMPLEMENTED(
        !info->in_place && !info->is_out && !info->is_view,
        "[{}] has no gradient on DTensors, since it writes to or aliases its "
        "argument. Call it on the local tensors.",
        info->name);
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  op.callBoxed(stack);
}

// Refuses dual tensors. Rules run on local tensors, which have no tangents.
void refuse_dual(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet,
    torch::jit::Stack*) {
  DTENSOR_THROW_NOT_IMPLEMENTED(
      "[{}] forward-mode derivatives of DTensors are not supported. Use "
      "backward(), or make dual tensors of local tensors.",
      name_of(op.operator_name()));
}

// Registrations of an operator's kernels, which last as long as these objects.
struct Installed {
  std::optional<torch::Library> backend;
  std::optional<torch::Library> autograd;
  std::shared_ptr<const OpInfo> info;
};

struct InstalledOps {
  std::mutex mutex;
  std::unordered_map<c10::OperatorName, Installed> by_name;
};

// Never destroyed, because operators are called until the process ends.
InstalledOps& installed_ops() {
  static auto& all = *new InstalledOps;
  return all;
}

void register_kernel(
    std::optional<torch::Library>& library,
    const c10::OperatorHandle& op,
    DispatchKey key,
    std::optional<torch::CppFunction> kernel) {
  if (!kernel) {
    return;
  }
  const auto& name = op.operator_name();
  library.emplace(
      torch::Library::IMPL,
      name.name.substr(0, name.name.find("::")),
      key,
      __FILE__,
      __LINE__);
  library->impl(name_of(name).c_str(), std::move(*kernel));
}

void install(const c10::OperatorHandle& op) {
  auto& all = installed_ops();
  const std::lock_guard lock(all.mutex);
  auto& installed = all.by_name[op.operator_name()];
  installed = {};
  auto kernels = kernels_of(op);
  register_kernel(
      installed.backend, op, kDTensorKey, std::move(kernels.backend));
  register_kernel(
      installed.autograd,
      op,
      kDTensorAutogradKey,
      std::move(kernels.above_autograd));
  installed.info = std::move(kernels.info);
}

bool install_all() {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) {
      continue;
    }
    if (const auto op = dispatcher.findSchema(name)) {
      install(*op);
    }
  }
  return true;
}

const bool is_installed = install_all();

} // namespace

// The lock prevents two threads from making the same OpInfo, because LibTorch
// records kernels without a lock.
std::shared_ptr<const OpInfo> info_of(const c10::OperatorHandle& op) {
  {
    auto& all = installed_ops();
    const std::lock_guard lock(all.mutex);
    const auto found = all.by_name.find(op.operator_name());
    if (found != all.by_name.end() && found->second.info != nullptr) {
      return found->second.info;
    }
  }
  return info_of_other(op);
}

void reinstall_kernels(const c10::OperatorHandle& op) {
  install(op);
}

TORCH_LIBRARY_IMPL(aten, Meta, m) {
  m.impl("_to_copy", to_copy_kernel_of_meta(false));
}

TORCH_LIBRARY_IMPL(aten, AutogradMeta, m) {
  m.impl("_to_copy", to_copy_kernel_of_meta(true));
}

// The macro below takes the name of a key instead of a constant.
static_assert(kInterceptKey == DispatchKey::TESTING_ONLY_GenericWrapper);
static_assert(kDTensorKey == DispatchKey::PrivateUse3);
static_assert(kDTensorAutogradKey == DispatchKey::AutogradPrivateUse3);

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericWrapper, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&intercept_operator>());
}

TORCH_LIBRARY_IMPL(aten, TESTING_ONLY_GenericWrapper, m) {
  m.impl(
      "_has_compatible_shallow_copy_type",
      torch::CppFunction::makeFromBoxedFunction<&before_set_data>());
}

TORCH_LIBRARY_IMPL(_, PrivateUse3, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(_, AutogradPrivateUse3, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&autograd_fallback>());
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse3, m) {
  m.impl(
      "_make_dual", torch::CppFunction::makeFromBoxedFunction<&refuse_dual>());
}

} // namespace dtensor::detail

// Symbol that programs refer to when they link a static library, so that the
// linker does not drop this file.
extern "C" DTENSOR_API void dtensor_operators() {}

// SPDX-License-Identifier: BSD-3-Clause
// Puts a slot under every operator when the library loads.
//
// Operators that LibTorch decomposes above autograd (CompositeImplicitAutograd)
// keep their decomposition unless they have a rule; then they are regions,
// intercepted at the autograd key. All others get a slot at the backend key:
// without it a composite kernel would win over a fallback and read storage.
#include <dtensor/ops/fast_kernel_impl.h>
#include <dtensor/ops/slot_impl.h>
#include <dtensor/ops/variants_impl.h>

#include <torch/library.h>

#include <map>
#include <memory>
#include <mutex>

namespace dtensor::detail {
namespace {

using c10::DispatchKey;

class OutKernel final : public c10::OperatorKernel {
 public:
  explicit OutKernel(c10::OperatorHandle functional)
      : functional_(std::move(functional)) {}
  void operator()(
      const c10::OperatorHandle& op,
      c10::DispatchKeySet,
      torch::jit::Stack* stack) {
    run_out_variant(op, functional_, stack);
  }

 private:
  c10::OperatorHandle functional_;
};

bool starts_with(const std::string& text, std::string_view prefix) {
  return text.compare(0, prefix.size(), prefix) == 0;
}

// Kernels that call other operators, one list element at a time.
bool decomposes_by_itself(const c10::OperatorHandle& op) {
  return starts_with(op.schema().name(), "aten::_foreach_") &&
      op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd);
}

bool keeps_its_kernel(const c10::OperatorHandle& op) {
  const auto& registry = RuleRegistry::global();
  if (registry.find(op.operator_name()) != nullptr) {
    return false;
  }
  return registry.keeps_composite(op.operator_name()) ||
      decomposes_by_itself(op) ||
      op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd);
}

torch::CppFunction kernel_of(
    const std::shared_ptr<const OpInfo>& info,
    bool above_autograd) {
  if (const auto* fast = find_fast_op(info->op.operator_name())) {
    return fast->make(info, above_autograd);
  }
  return torch::CppFunction::makeFromBoxedFunctor(
      std::make_unique<SlotKernel>(info, above_autograd));
}

void install(
    const c10::OperatorHandle& op,
    torch::Library& backend,
    torch::Library& autograd) {
  if (keeps_its_kernel(op)) {
    return;
  }
  const auto& n = op.operator_name();
  const auto name =
      n.overload_name.empty() ? n.name : n.name + "." + n.overload_name;
  auto info = std::make_shared<OpInfo>(op);
  if (info->is_out && info->rule == nullptr) {
    if (auto functional = functional_of_out(op)) {
      backend.impl(
          name.c_str(),
          torch::CppFunction::makeFromBoxedFunctor(
              std::make_unique<OutKernel>(*functional)));
      return;
    }
  }
  backend.impl(name.c_str(), kernel_of(info, false));
  if (info->is_region) {
    autograd.impl(name.c_str(), kernel_of(info, true));
  }
}

// Operators of other libraries, and those registered after this one.
void fallback(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet,
    torch::jit::Stack* stack) {
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<OpInfo>> infos;
  std::shared_ptr<OpInfo> info;
  {
    const std::lock_guard lock(mutex);
    const auto& n = op.operator_name();
    auto& slot = infos[n.name + "." + n.overload_name];
    if (slot == nullptr) {
      slot = std::make_shared<OpInfo>(op);
    }
    info = slot;
  }
  dispatch(*info, stack);
}

} // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse3, backend) {
  // Kept for the life of the process, as the registrations are.
  static torch::Library autograd(
      torch::Library::IMPL,
      "aten",
      DispatchKey::AutogradPrivateUse3,
      __FILE__,
      __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (!starts_with(name.name, "aten::")) {
      continue;
    }
    if (auto op = dispatcher.findSchema(name)) {
      install(*op, backend, autograd);
    }
  }
}

TORCH_LIBRARY_IMPL(_, PrivateUse3, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

} // namespace dtensor::detail

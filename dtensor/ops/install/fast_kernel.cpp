// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/install/fast_kernel_impl.h>

#include <dtensor/ops/path/decide_impl.h>
#include <dtensor/ops/path/dispatch_impl.h>
#include <dtensor/ops/path/local_call_impl.h>

namespace dtensor::detail {

void FastSlot::set(std::shared_ptr<const OpInfo> op_info, bool above_autograd) {
  info = op_info;
  boxed = std::make_unique<c10::KernelFunction>(
      c10::KernelFunction::makeFromBoxedFunctor(
          std::make_unique<SlotKernel>(std::move(op_info), above_autograd)));
}

void note_decision(
    const FastSlot& slot,
    const ShortKey& key,
    const torch::jit::Stack& args) {
  const OpInfo& info = *slot.info;
  auto decision = decide(info, args, key.words());
  if (!is_local_only(info, *decision)) {
    decision = nullptr;
  }
  const bool stock =
      decision != nullptr && uses_native_autograd(info, *decision, args);
  recent_decisions(info.slot).insert(key, std::move(decision), stock);
}

const FastOp* find_fast_op(const c10::OperatorName& name) {
  for (const auto* ops : {&fast_pointwise_ops(), &fast_other_ops()}) {
    for (const FastOp& op : *ops) {
      if (name.name == op.name && name.overload_name == op.overload) {
        return &op;
      }
    }
  }
  return nullptr;
}

} // namespace dtensor::detail

// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/fast_kernel_impl.h>

#include <algorithm>

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
      decision != nullptr && takes_stock_autograd(info, *decision, args);
  recent_decisions(info.slot).insert(key, std::move(decision), stock);
}

bool rewrites(const OpInfo& info, const Decision& decision) {
  return info.rule == nullptr ||
      (info.rule->local_kernel && !decision.is_plain_call) ||
      info.rule->kernel || info.inplace_view || info.is_out;
}

bool is_local_only(const OpInfo& info, const Decision& decision) {
  const auto is_null = [](const SpecPtr& spec) { return spec == nullptr; };
  return !rewrites(info, decision) && !decision.redistributes &&
      !decision.shapes_from_results && decision.args.empty() &&
      std::all_of(decision.inputs.begin(), decision.inputs.end(), is_null) &&
      !decision.outputs.empty() &&
      std::all_of(
          decision.outputs.begin(),
          decision.outputs.end(),
          [](const SpecPtr& spec) {
            return spec == nullptr || spec->mesh().contains_this_rank();
          });
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

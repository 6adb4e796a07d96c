// SPDX-License-Identifier: BSD-3-Clause
// What the rules of losses share.
#pragma once

#include <dtensor/ops/registry.h>
#include <dtensor/ops/rules/kernel_args_impl.h>

#include <ATen/core/Reduction.h>

#include <algorithm>

namespace dtensor::detail {

inline OutputMeta dense(SizesRef sizes, at::ScalarType dtype) {
  return {
      Sizes(sizes.begin(), sizes.end()),
      contiguous_strides(sizes),
      dtype,
      true};
}

inline bool keeps_shape(const OpCall& call) {
  return call.int_arg("reduction") == at::Reduction::None;
}

inline void set_arg(
    const c10::OperatorHandle& op,
    torch::jit::Stack* stack,
    std::string_view name,
    c10::IValue value) {
  const KernelArgs args(op, *stack);
  const auto count = op.schema().arguments().size();
  (*stack)[stack->size() - count + static_cast<size_t>(args.find(name))] =
      std::move(value);
}

// Local kernels look at the layouts of inputs.
inline void keep_specs(const OpCall& call, Decision& decision) {
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    if (decision.inputs[i] == nullptr && !call.inputs[i].is_plain) {
      decision.inputs[i] = call.inputs[i].spec;
    }
  }
}

inline bool cuts_any(const Spec& spec) {
  return std::any_of(
      spec.placements().begin(), spec.placements().end(), [](const auto& p) {
        return p.cuts();
      });
}

} // namespace dtensor::detail

// SPDX-License-Identifier: BSD-3-Clause
// Walking over the tensors of a boxed call. Tensors are counted in the order
// of the arguments, lists flattened, undefined ones left out: the order of
// OpCall::inputs and Decision::inputs.
#pragma once

#include <ATen/core/List_inl.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <cstddef>

namespace dtensor::detail {

/// visit(const at::Tensor&, size_t arg, int item); item is -1 outside lists.
template <class Visit>
void visit_tensors(c10::ArrayRef<c10::IValue> args, const Visit& visit) {
  for (size_t arg = 0; arg < args.size(); ++arg) {
    const auto& value = args[arg];
    if (value.isTensor()) {
      const auto& tensor = value.toTensor();
      if (tensor.defined()) {
        visit(tensor, arg, -1);
      }
    } else if (value.isList()) {
      const auto list = value.toListRef();
      for (size_t i = 0; i < list.size() && !list[i].isInt(); ++i) {
        if (list[i].isTensor() && list[i].toTensor().defined()) {
          visit(list[i].toTensor(), arg, static_cast<int>(i));
        }
      }
    }
  }
}

/// Replaces each tensor by map(const at::Tensor&, size_t index).
template <class Map>
void map_tensors(c10::IValue* args, size_t count, const Map& map) {
  size_t index = 0;
  for (size_t arg = 0; arg < count; ++arg) {
    auto& value = args[arg];
    if (value.isTensor()) {
      if (value.toTensor().defined()) {
        value = map(value.toTensor(), index++);
      }
    } else if (value.isTensorList() || value.isOptionalTensorList()) {
      auto list = value.toList().copy();
      for (size_t i = 0; i < list.size(); ++i) {
        const c10::IValue item = list.get(i);
        if (item.isTensor() && item.toTensor().defined()) {
          list.set(i, map(item.toTensor(), index++));
        }
      }
      value = std::move(list);
    }
  }
}

inline c10::ArrayRef<c10::IValue> last_args(
    const torch::jit::Stack& stack,
    size_t count) {
  return c10::ArrayRef<c10::IValue>(stack).slice(stack.size() - count);
}

} // namespace dtensor::detail

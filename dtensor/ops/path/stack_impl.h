// SPDX-License-Identifier: BSD-3-Clause
// Visitors for the tensors of a boxed call. Tensors are numbered in argument
// order, with lists flattened and undefined tensors skipped, as in
// OpCall::inputs and Decision::inputs.
#pragma once

#include <ATen/core/List_inl.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/operator_name.h>
#include <ATen/core/stack.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace dtensor::detail {

/// Calls visit(const at::Tensor&, size_t arg, int item) for each tensor; item
/// is -1 outside lists.
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

/// Returns all tensors in `values`.
inline std::vector<at::Tensor> tensors_in(c10::ArrayRef<c10::IValue> values) {
  std::vector<at::Tensor> found;
  visit_tensors(
      values, [&](const at::Tensor& t, size_t, int) { found.push_back(t); });
  return found;
}

/// Returns true if test(const at::Tensor&) holds for a tensor of `values`.
template <class Test>
bool any_tensor(c10::ArrayRef<c10::IValue> values, const Test& test) {
  bool any = false;
  visit_tensors(
      values, [&](const at::Tensor& t, size_t, int) { any = any || test(t); });
  return any;
}

/// Returns true if test(const at::Tensor&) holds for all tensors of `values`.
template <class Test>
bool all_tensors(c10::ArrayRef<c10::IValue> values, const Test& test) {
  return !any_tensor(values, std::not_fn(test));
}

/// Returns true if the operator writes to the argument.
inline bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

/// Returns true for a list with tensors. Looks at the items, because
/// TorchScript's lists of optional tensors have types for which
/// isOptionalTensorList() is false.
inline bool is_list_with_tensors(const c10::IValue& value) {
  if (!value.isList()) {
    return false;
  }
  const auto items = value.toListRef();
  return !items.empty() && !items[0].isInt() &&
      std::any_of(items.begin(), items.end(), [](const c10::IValue& item) {
        return item.isTensor();
      });
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
    } else if (is_list_with_tensors(value)) {
      auto list = value.toList().copy();
      for (size_t i = 0; i < list.size(); ++i) {
        const c10::IValue& item = list.get(i);
        if (item.isTensor() && item.toTensor().defined()) {
          list.set(i, map(item.toTensor(), index++));
        }
      }
      value = list;
    }
  }
}

/// Replaces every tensor among the results on the stack by map(at::Tensor&&,
/// size_t index); undefined tensors stay.
template <class Map>
void map_results(torch::jit::Stack* stack, size_t num_returns, const Map& map) {
  size_t index = 0;
  for (size_t i = stack->size() - num_returns; i < stack->size(); ++i) {
    auto& value = (*stack)[i];
    if (value.isTensor()) {
      const auto at = index++;
      if (value.toTensor().defined()) {
        value = map(std::move(value).toTensor(), at);
      }
    } else if (value.isTensorList()) {
      auto list = value.toTensorVector();
      for (auto& t : list) {
        t = map(std::move(t), index++);
      }
      value = std::move(list);
    }
  }
}

/// Returns a full operator name: "aten::add.Tensor".
inline std::string name_of(const c10::OperatorName& name) {
  return name.overload_name.empty() ? name.name
                                    : name.name + "." + name.overload_name;
}

inline c10::ArrayRef<c10::IValue> last_args(
    const torch::jit::Stack& stack,
    size_t count) {
  return c10::ArrayRef<c10::IValue>(stack).slice(stack.size() - count);
}

/// Returns the last `count` values of the stack, to be replaced.
inline c10::IValue* mutable_args(torch::jit::Stack* stack, size_t count) {
  return stack->data() + (stack->size() - count);
}

/// Returns true if autograd must record a call with these arguments.
inline bool wants_gradients(c10::ArrayRef<c10::IValue> args) {
  return c10::GradMode::is_enabled() &&
      any_tensor(args, [](const auto& t) { return t.requires_grad(); });
}

} // namespace dtensor::detail

// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/program/graph_impl.h>

#include <ATen/core/jit_type.h>

#include <utility>

namespace dtensor::detail {

using c10::IValue;

IValue make_list(const ListOperand& list, c10::ArrayRef<IValue> values) {
  const auto at = [&](const std::variant<IValue, Slot>& item) -> const IValue& {
    const auto* slot = std::get_if<Slot>(&item);
    return slot == nullptr ? std::get<IValue>(item) : values[*slot];
  };
  const auto filled = [&](auto made, const auto& get) {
    made.reserve(list.items.size());
    for (const auto& item : list.items) {
      made.push_back(get(at(item)));
    }
    return IValue(std::move(made));
  };
  switch (list.of) {
    case ListOf::kTensor:
      return filled(c10::List<at::Tensor>(), [](const IValue& v) {
        return v.toTensor();
      });
    case ListOf::kOptionalTensor:
      return filled(
          c10::List<std::optional<at::Tensor>>(),
          [](const IValue& v) { return v.toOptional<at::Tensor>(); });
    case ListOf::kInt:
      return filled(
          c10::List<int64_t>(), [](const IValue& v) { return v.toInt(); });
    case ListOf::kFloat:
      return filled(c10::List<double>(), [](const IValue& v) {
        return v.isInt() ? static_cast<double>(v.toInt()) : v.toDouble();
      });
    case ListOf::kBool:
      return filled(
          c10::List<bool>(), [](const IValue& v) { return v.toBool(); });
    case ListOf::kNumber:
      return filled(
          c10::impl::GenericList(c10::NumberType::get()),
          [](const IValue& v) { return v; });
  }
  return {};
}

} // namespace dtensor::detail

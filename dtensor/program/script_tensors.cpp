// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/program/script_tensors_impl.h>

#include <dtensor/tensor/dtensor.h>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/ops/empty.h>

#include <utility>

namespace dtensor::detail {
namespace {

using c10::IValue;
using OptionalTensors = c10::List<std::optional<at::Tensor>>;

using Other = std::function<at::Tensor(const at::Tensor&)>;

at::Tensor with_other(const at::Tensor& t, const Other& other) {
  return t.defined() ? other(t) : t;
}

// Returns the value with its tensors replaced.
IValue with_tensors(const IValue& value, const Other& other) {
  if (value.isTensor()) {
    return with_other(value.toTensor(), other);
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& t : value.toTensorVector()) {
      list.push_back(with_other(t, other));
    }
    return list;
  }
  if (value.isOptionalTensorList()) {
    OptionalTensors list;
    for (const auto& t : value.toOptionalTensorVector()) {
      list.push_back(t ? std::optional(with_other(*t, other)) : t);
    }
    return list;
  }
  if (value.isTuple()) {
    std::vector<IValue> items;
    for (const auto& item : value.toTupleRef().elements()) {
      items.push_back(with_tensors(item, other));
    }
    return c10::ivalue::Tuple::create(std::move(items));
  }
  if (value.isGenericDict()) {
    const auto dict = value.toGenericDict();
    c10::impl::GenericDict copy(dict.keyType(), dict.valueType());
    for (const auto& item : dict) {
      copy.insert(item.key(), with_tensors(item.value(), other));
    }
    return copy;
  }
  return value;
}

} // namespace

void visit_tensors_in(
    const IValue& value,
    const std::function<void(const at::Tensor&)>& use) {
  with_tensors(value, [&](const at::Tensor& t) {
    use(t);
    return t;
  });
}

at::Tensor ScriptTensors::add(
    const at::Tensor& t,
    InputKind kind,
    const std::string& name) {
  // Creates a DTensor, because sharding rules give the shapes of more operators
  // than LibTorch's meta kernels.
  at::Tensor standing = replicate_tensor(
      at::empty(
          t.sizes(), at::TensorOptions(t.scalar_type()).device(c10::kMeta)),
      DeviceMesh(c10::kCPU, {1}, {0}));
  GraphInput input;
  input.kind = kind;
  input.name = name;
  for (const auto size : t.sizes()) {
    input.sizes.push_back({size});
  }
  input.dtype = t.scalar_type();
  input.slot = define(standing);
  const bool is_given = kind == InputKind::kUser;
  state_.graph.inputs.push_back(std::move(input));
  state_.inputs.push_back(is_given ? at::Tensor() : standing);
  standing_.emplace(t.unsafeGetTensorImpl(), standing);
  alive_.push_back(t);
  return standing;
}

at::Tensor ScriptTensors::add_held(const NamedTensor& held) {
  const auto kind = held.is_buffer ? InputKind::kBuffer : InputKind::kParameter;
  const auto known = standing_.find(held.tensor.unsafeGetTensorImpl());
  return known != standing_.end() ? known->second
                                  : add(held.tensor, kind, held.name);
}

IValue ScriptTensors::add_given(const std::string& name, const IValue& value) {
  return with_tensors(value, [&](const at::Tensor& t) {
    return add(t, InputKind::kUser, name);
  });
}

const at::Tensor* ScriptTensors::find(const at::Tensor& t) const {
  if (slots_.count(t.unsafeGetTensorImpl()) > 0) {
    return &t;
  }
  const auto standing = standing_.find(t.unsafeGetTensorImpl());
  return standing == standing_.end() ? nullptr : &standing->second;
}

bool ScriptTensors::is_read(const at::Tensor& t) const {
  return find(t) != nullptr;
}

at::Tensor ScriptTensors::describe(const at::Tensor& t) {
  const auto* known = find(t);
  return known != nullptr ? *known : add(t, InputKind::kConstant, "");
}

IValue ScriptTensors::described(const IValue& value) {
  return with_tensors(
      value, [this](const at::Tensor& t) { return describe(t); });
}

Slot ScriptTensors::define(const at::Tensor& t) {
  const auto slot = state_.graph.num_slots++;
  slots_[t.unsafeGetTensorImpl()] = slot;
  alive_.push_back(t);
  return slot;
}

std::vector<Slot> ScriptTensors::slots_in(const IValue& value) const {
  std::vector<Slot> slots;
  visit_tensors_in(value, [&](const at::Tensor& t) {
    if (const auto* known = find(t)) {
      slots.push_back(slot_of(*known));
    }
  });
  return slots;
}

Operand operand_of(const IValue& value, const ScriptTensors& tensors) {
  if (value.isTensor() && value.toTensor().defined()) {
    return ValueOperand{tensors.slot_of(value.toTensor())};
  }
  if (!value.isTensorList() && !value.isOptionalTensorList()) {
    return value;
  }
  ListOperand list{
      value.isTensorList() ? ListOf::kTensor : ListOf::kOptionalTensor, {}};
  for (const IValue& item : value.toListRef()) {
    if (item.isTensor() && item.toTensor().defined()) {
      list.items.emplace_back(tensors.slot_of(item.toTensor()));
    } else {
      list.items.emplace_back(item);
    }
  }
  return list;
}

} // namespace dtensor::detail

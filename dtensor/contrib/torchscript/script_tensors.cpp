// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/contrib/torchscript/read_script_impl.h>

#include <dtensor/tensor/dtensor.h>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/ops/empty.h>

#include <utility>

namespace dtensor::torchscript {
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

void visit_tensors_in(
    const torch::jit::Stack& values,
    const std::function<void(const at::Tensor&)>& use) {
  for (const auto& value : values) {
    visit_tensors_in(value, use);
  }
}

at::Tensor ScriptTensors::add(const at::Tensor& t) {
  // Creates a DTensor, because sharding rules give the shapes of more operators
  // than LibTorch's meta kernels.
  at::Tensor standing = replicate_tensor(
      at::empty(
          t.sizes(), at::TensorOptions(t.scalar_type()).device(c10::kMeta)),
      DeviceMesh(c10::kCPU, {1}, {0}));
  graph_.inputs.push_back({define(standing), t});
  standing_.emplace(t.unsafeGetTensorImpl(), standing);
  return standing;
}

void ScriptTensors::add_held(const at::Tensor& t) {
  if (standing_.count(t.unsafeGetTensorImpl()) == 0) {
    add(t);
  }
}

IValue ScriptTensors::add_given(const IValue& value) {
  return with_tensors(value, [&](const at::Tensor& t) { return add(t); });
}

const at::Tensor* ScriptTensors::find(const at::Tensor& t) const {
  if (values_.count(t.unsafeGetTensorImpl()) > 0) {
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
  return known != nullptr ? *known : add(t);
}

IValue ScriptTensors::described(const IValue& value) {
  return with_tensors(
      value, [this](const at::Tensor& t) { return describe(t); });
}

OperatorGraph::Value ScriptTensors::define(const at::Tensor& t) {
  const auto value = graph_.new_value();
  values_[t.unsafeGetTensorImpl()] = value;
  alive_.push_back(t);
  return value;
}

std::vector<OperatorGraph::Value> ScriptTensors::values_in(
    const IValue& value) const {
  std::vector<OperatorGraph::Value> values;
  visit_tensors_in(value, [&](const at::Tensor& t) {
    if (const auto* known = find(t)) {
      values.push_back(value_of(*known));
    }
  });
  return values;
}

OperatorGraph::Argument argument_of(
    const IValue& value,
    const ScriptTensors& tensors) {
  if (value.isTensor() && value.toTensor().defined()) {
    return tensors.value_of(value.toTensor());
  }
  if (!value.isTensorList() && !value.isOptionalTensorList()) {
    return value;
  }
  std::vector<OperatorGraph::Item> items;
  for (const IValue& item : value.toListRef()) {
    if (item.isTensor() && item.toTensor().defined()) {
      items.emplace_back(tensors.value_of(item.toTensor()));
    } else {
      items.emplace_back(item);
    }
  }
  return items;
}

} // namespace dtensor::torchscript

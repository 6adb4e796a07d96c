// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/program/read_script_impl.h>

#include <dtensor/error.h>
#include <dtensor/program/allowed_operators_impl.h>
#include <dtensor/program/script_tensors_impl.h>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <torch/csrc/jit/ir/ir.h>

#include <set>
#include <utility>

namespace dtensor::detail {
namespace {

namespace jit = torch::jit;
using c10::IValue;

IValue list_of(const jit::Stack& items, const c10::Type& type) {
  c10::impl::GenericList list(type.expectRef<c10::ListType>().getElementType());
  for (const auto& item : items) {
    list.push_back(item);
  }
  return list;
}

IValue dict_of(const jit::Stack& items, const c10::Type& type) {
  const auto& types = type.expectRef<c10::DictType>();
  c10::impl::GenericDict dict(types.getKeyType(), types.getValueType());
  for (size_t i = 0; i + 1 < items.size(); i += 2) {
    dict.insert_or_assign(items[i], items[i + 1]);
  }
  return dict;
}

jit::Stack items_of(const IValue& value) {
  if (value.isTuple()) {
    const auto& elements = value.toTupleRef().elements();
    return jit::Stack(elements.begin(), elements.end());
  }
  return value.toListRef().vec();
}

} // namespace

void run_function(const jit::Node& node, jit::Stack& stack) {
  const auto kind = kind_of(node);
  if (kind == "prim::ListConstruct") {
    stack = {list_of(stack, *node.output()->type())};
  } else if (kind == "prim::DictConstruct") {
    stack = {dict_of(stack, *node.output()->type())};
  } else if (kind == "prim::TupleConstruct") {
    stack = {c10::ivalue::Tuple::create(std::move(stack))};
  } else if (kind == "prim::ListUnpack" || kind == "prim::TupleUnpack") {
    stack = items_of(stack[0]);
    TORCH_INTERNAL_ASSERT(stack.size() == node.outputs().size());
  } else {
    DTENSOR_CHECK_NOT_IMPLEMENTED(
        script_function_only_computes(kind),
        "[find_tp_plan] {} may have side effects. It is not read.",
        kind);
    node.getOperation()(stack);
  }
}

bool makes_tensors(const jit::Stack& results, const jit::Stack& given) {
  std::set<const void*> known;
  for (const auto& value : given) {
    visit_tensors_in(value, [&](const at::Tensor& t) {
      known.insert(t.unsafeGetTensorImpl());
    });
  }
  bool makes = false;
  for (const auto& value : results) {
    visit_tensors_in(value, [&](const at::Tensor& t) {
      makes = makes || known.count(t.unsafeGetTensorImpl()) == 0;
    });
  }
  return makes;
}

} // namespace dtensor::detail

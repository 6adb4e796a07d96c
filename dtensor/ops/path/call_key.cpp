// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/path/call_key_impl.h>

#include <ATen/core/List_inl.h>
#include <ATen/core/jit_type.h>
#include <dtensor/ops/scopes/plain_operand_impl.h>
#include <dtensor/ops/scopes/replicated_impl.h>

namespace dtensor::detail {
namespace {

bool is_fixed_size(const c10::Argument& argument) {
  return argument.N().has_value() &&
      argument.type()->kind() == c10::TypeKind::ListType &&
      argument.type()->expectRef<c10::ListType>().getElementType()->kind() ==
      c10::TypeKind::BoolType;
}

// Adds a value that is not None.
void add_item_to_key(
    LongKey& key,
    const c10::IValue& value,
    c10::TypeKind kind,
    bool matters) {
  using Kind = c10::TypeKind;
  if (kind == Kind::TensorType && value.isTensor()) {
    add_to_key(key, value.toTensor(), matters);
  } else if (kind == Kind::IntType && value.isInt()) {
    add_to_key(key, value.toInt(), matters);
  } else if (kind == Kind::BoolType && value.isBool()) {
    add_to_key(key, value.toBool(), matters);
  } else if (kind == Kind::FloatType && value.isDouble()) {
    add_to_key(key, value.toDouble(), matters);
  } else if (kind == Kind::NumberType && value.isScalar()) {
    add_to_key(key, value.toScalar(), matters);
  } else if (kind == Kind::StringType && value.isString()) {
    add_to_key(key, std::string_view(value.toStringRef()), matters);
  } else if (kind == Kind::DeviceObjType && value.isDevice()) {
    add_to_key(key, value.toDevice(), matters);
  } else if (kind == Kind::GeneratorType && value.isGenerator()) {
    add_to_key(key, value.toGenerator(), matters);
  } else {
    key.make_unusable();
  }
}

} // namespace

uint64_t word_of_plain(const at::Tensor& t) {
  const bool wrapped = t.unsafeGetTensorImpl()->is_wrapped_number();
  const bool may_split = !wrapped && may_split_plain();
  const auto* scope = t.dim() == 0 ? nullptr : current_decomposition();
  const bool allows = scope != nullptr && scope->may_replicate();
  return (static_cast<uint64_t>(t.scalar_type()) << 8) |
      (static_cast<uint64_t>(allows) << 6) |
      (static_cast<uint64_t>(may_split) << 5) |
      (static_cast<uint64_t>(wrapped) << 2) | 3;
}

void add_to_key(
    LongKey& key,
    const c10::IValue& value,
    const c10::Type& type,
    bool fixed_size,
    bool matters) {
  if (type.kind() == c10::TypeKind::OptionalType) {
    key.push(!value.isNone());
    if (!value.isNone()) {
      const auto& inner = type.expectRef<c10::OptionalType>().getElementType();
      add_to_key(key, value, *inner, fixed_size, matters);
    }
  } else if (type.kind() == c10::TypeKind::ListType && value.isList()) {
    const auto& items = type.expectRef<c10::ListType>().getElementType();
    const auto list = value.toListRef();
    if (!fixed_size) {
      key.push(list.size());
    }
    for (const auto& item : list) {
      add_to_key(key, item, *items, false, matters);
    }
  } else {
    add_item_to_key(key, value, type.kind(), matters);
  }
}

LongKey key_of(const OpInfo& info, c10::ArrayRef<c10::IValue> args) {
  LongKey key;
  const auto& arguments = info.op.schema().arguments();
  for (size_t i = 0; i < args.size() && key.usable(); ++i) {
    add_to_key(
        key,
        args[i],
        *arguments[i].type(),
        is_fixed_size(arguments[i]),
        info.value_matters[i]);
  }
  add_caller_to_key(key, info);
  return key;
}

} // namespace dtensor::detail

// SPDX-License-Identifier: BSD-3-Clause
// Cache key of a call, as a list of words. Unboxed and boxed calls write the
// same key, so each finds the decisions that the other has made.
//
//   DTensor            its spec's id, twice
//   undefined tensor   1
//   plain tensor       a word that ends in the bits 11, its sizes
//   int, bool, enum    the value
//   float              the value if the rule uses it, else nothing
//   Scalar             the type; the value if the rule uses it
//   text               the length, eight characters a word
//   generator          nothing: a generator does not affect the decision
//   optional           1 and the value, or 0
//   list               the length (except for bool[3] and similar), the items
//
// The signature fixes the type at every position. Ids are never reused.
#pragma once

#include <ATen/DTensorState.h>
#include <ATen/core/Generator.h>
#include <ATen/core/IListRef.h>
#include <ATen/core/IListRef_inl.h>
#include <ATen/core/Tensor.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/Scalar.h>
#include <c10/core/SymIntArrayRef.h>
#include <c10/util/OptionalArrayRef.h>
#include <dtensor/ops/path/in_backward_impl.h>
#include <dtensor/ops/path/key_words_impl.h>
#include <dtensor/ops/path/op_info_impl.h>

#include <array>
#include <bit>
#include <concepts>
#include <string_view>

namespace dtensor::detail {

/// Returns a word with the dtype and the possible layouts of `t` in this scope.
uint64_t word_of_plain(const at::Tensor& t);

template <class Key>
void add_plain_to_key(Key& key, const at::Tensor& t) {
  auto word = word_of_plain(t);
  if (t.dim() == 0) { // the same on every rank, but not beside Partial
    key.push(word);
  } else if constexpr (Key::kOfUnboxed) {
    key.make_unusable();
  } else {
    const bool allows = at::get_dtensor_allow_implicit_replication();
    word |= static_cast<uint64_t>(allows) << 3;
    word |= static_cast<uint64_t>(in_view_backward()) << 4;
    key.push(word | (static_cast<uint64_t>(t.dim()) << 16));
    for (const auto size : t.sizes()) {
      key.push(static_cast<uint64_t>(size));
    }
  }
}

template <class Key>
void add_to_key(Key& key, const at::Tensor& t, bool) {
  if (C10_LIKELY(is_dtensor(t))) {
    const auto& meta = meta_of(t);
    key.note(meta);
    key.push(meta.spec->id() << 1);
  } else if (!t.defined()) {
    key.push(1);
  } else {
    add_plain_to_key(key, t);
  }
}

template <class Key, class T>
requires std::integral<T> || std::is_enum_v<T>
void add_to_key(Key& key, T value, bool) {
  key.push(static_cast<uint64_t>(value));
}

template <class Key>
void add_to_key(Key& key, double value, bool matters) {
  if (matters) {
    key.push(std::bit_cast<uint64_t>(value));
  }
}

template <class Key>
void add_to_key(Key& key, const c10::Scalar& value, bool matters) {
  key.push(static_cast<uint64_t>(value.type()));
  if (!matters) {
    return;
  }
  if (value.isFloatingPoint()) {
    key.push(std::bit_cast<uint64_t>(value.toDouble()));
  } else if (value.isComplex()) {
    const auto number = value.toComplexDouble();
    key.push(std::bit_cast<uint64_t>(number.real()));
    key.push(std::bit_cast<uint64_t>(number.imag()));
  } else if (value.isSymbolic()) {
    key.make_unusable();
  } else {
    key.push(
        value.type() == at::kUInt64 ? value.toUInt64()
                                    : static_cast<uint64_t>(value.toLong()));
  }
}

template <class Key>
void add_to_key(Key& key, const c10::SymInt& value, bool) {
  if (const auto number = value.maybe_as_int()) {
    key.push(static_cast<uint64_t>(*number));
  } else {
    key.make_unusable();
  }
}

template <class Key>
void add_to_key(Key& key, c10::Device value, bool) {
  key.push(
      (static_cast<uint64_t>(value.type()) << 8) |
      static_cast<uint8_t>(value.index()));
}

template <class Key>
void add_to_key(Key&, const at::Generator&, bool) {}

template <class Key>
void add_to_key(Key& key, std::string_view text, bool) {
  key.push(text.size());
  uint64_t word = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    word = (word << 8) | static_cast<uint8_t>(text[i]);
    if (i % 8 == 7 || i + 1 == text.size()) {
      key.push(word);
      word = 0;
    }
  }
}

template <class Key, class T>
void add_to_key(Key& key, c10::ArrayRef<T> list, bool matters) {
  key.push(list.size());
  for (const auto& item : list) {
    add_to_key(key, item, matters);
  }
}

template <class Key, size_t n>
void add_to_key(Key& key, const std::array<bool, n>& flags, bool) {
  for (const bool flag : flags) {
    key.push(flag);
  }
}

template <class Key>
void add_to_key(Key& key, const at::ITensorListRef& list, bool matters) {
  key.push(list.size());
  for (const at::Tensor& item : list) {
    add_to_key(key, item, matters);
  }
}

template <class Key, class T>
void add_to_key(Key& key, const std::optional<T>& value, bool matters) {
  key.push(value.has_value());
  if (value) {
    add_to_key(key, *value, matters);
  }
}

template <class Key, class T>
void add_to_key(Key& key, c10::OptionalArrayRef<T> list, bool matters) {
  key.push(list.has_value());
  if (list) {
    add_to_key(key, *list, matters);
  }
}

/// Adds the default dtype, and for some rules if a gradient formula calls.
template <class Key>
void add_caller_to_key(Key& key, const OpInfo& info) {
  const bool backward = info.used_in_backward && in_backward();
  const bool of_view = info.used_in_backward &&
      info.rule->depends_on_view_gradients && in_view_backward();
  key.push(
      (static_cast<uint64_t>(c10::get_default_dtype_as_scalartype()) << 2) |
      (static_cast<uint64_t>(backward) << 1) | static_cast<uint64_t>(of_view));
}

/// Adds a boxed argument; `fixed_size` is true for bool[3] and similar types.
void add_to_key(
    LongKey& key,
    const c10::IValue& value,
    const c10::Type& type,
    bool fixed_size,
    bool matters);

/// Returns the key of a boxed call.
LongKey key_of(const OpInfo& info, c10::ArrayRef<c10::IValue> args);

} // namespace dtensor::detail

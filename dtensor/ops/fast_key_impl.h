// SPDX-License-Identifier: BSD-3-Clause
// FastKey and FastTable: what an unboxed call looks up in place of the key and
// the cache of decide.cpp.
//
// A FastKey says the same as a CacheKey, but its words need no tags: the
// operator's signature fixes the type at every position. A call that a FastKey
// cannot tell apart from another one (a plain tensor with dimensions, a style
// on a parameter) is unusable and takes the boxed path.
#pragma once

#include <ATen/core/IListRef.h>
#include <ATen/core/IListRef_inl.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>
#include <c10/core/SymIntArrayRef.h>
#include <c10/util/OptionalArrayRef.h>
#include <dtensor/ops/strategy.h>
#include <dtensor/tensor/meta_impl.h>

#include <algorithm>
#include <array>
#include <bit>
#include <concepts>
#include <string_view>

namespace dtensor::detail {

class FastKey {
 public:
  static constexpr size_t kWords = 14;

  void push(uint64_t word) {
    if (C10_UNLIKELY(size_ == kWords)) {
      usable_ = false;
      return;
    }
    words_[size_++] = word;
    hash_ = (hash_ ^ word) * 0x9E3779B97F4A7C15ull;
  }
  void make_unusable() {
    usable_ = false;
  }
  /// A style rides on one of the arguments.
  void note_boundaries() {
    has_boundaries_ = true;
  }

  bool usable() const {
    return usable_;
  }
  bool has_boundaries() const {
    return has_boundaries_;
  }
  /// The high bits of a product are its best ones.
  size_t bucket(size_t bits) const {
    return static_cast<size_t>(hash_ >> (64 - bits));
  }
  friend bool operator==(const FastKey& a, const FastKey& b) {
    return a.hash_ == b.hash_ && a.size_ == b.size_ &&
        std::equal(
               a.words_.begin(), a.words_.begin() + a.size_, b.words_.begin());
  }

 private:
  uint64_t hash_ = 0xFF51AFD7ED558CCDull;
  uint32_t size_ = 0;
  bool usable_ = true;
  bool has_boundaries_ = false;
  std::array<uint64_t, kWords> words_; // the first size_ are set
};

// A DTensor is twice its spec's id; everything else a tensor can be is odd.
inline void add_to_fast_key(FastKey& key, const at::Tensor& t, bool) {
  if (C10_LIKELY(is_dtensor(t))) {
    const auto& meta = meta_of(t);
    if (C10_UNLIKELY(meta.view_facts != nullptr && copied_from(t) != nullptr)) {
      key.make_unusable();
    }
    if (C10_UNLIKELY(meta.boundaries != nullptr)) {
      key.note_boundaries();
    }
    key.push(meta.spec->id() << 1);
  } else if (!t.defined()) {
    key.push(1);
  } else if (t.dim() == 0) {
    const auto* impl = t.unsafeGetTensorImpl();
    key.push(
        (static_cast<uint64_t>(t.scalar_type()) << 8) |
        (static_cast<uint64_t>(impl->is_wrapped_number()) << 2) | 3);
  } else {
    key.make_unusable();
  }
}

template <class T>
requires std::integral<T> || std::is_enum_v<T>
void add_to_fast_key(FastKey& key, T value, bool) {
  key.push(static_cast<uint64_t>(value));
}

inline void add_to_fast_key(FastKey& key, double value, bool matters) {
  if (matters) {
    key.push(std::bit_cast<uint64_t>(value));
  }
}

inline void
add_to_fast_key(FastKey& key, const c10::Scalar& value, bool matters) {
  key.push(static_cast<uint64_t>(value.type()));
  if (matters) {
    if (value.isComplex() || value.isSymbolic()) {
      key.make_unusable();
    } else {
      key.push(
          value.isFloatingPoint() ? std::bit_cast<uint64_t>(value.toDouble())
                                  : static_cast<uint64_t>(value.toLong()));
    }
  }
}

inline void add_to_fast_key(FastKey& key, const c10::SymInt& value, bool) {
  if (const auto number = value.maybe_as_int()) {
    key.push(static_cast<uint64_t>(*number));
  } else {
    key.make_unusable();
  }
}

inline void add_to_fast_key(FastKey& key, c10::Device value, bool) {
  key.push(
      (static_cast<uint64_t>(value.type()) << 8) |
      static_cast<uint8_t>(value.index()));
}

inline void add_to_fast_key(FastKey& key, std::string_view text, bool) {
  uint64_t word = 0;
  if (text.size() > sizeof(word)) {
    key.make_unusable();
    return;
  }
  for (const char c : text) {
    word = (word << 8) | static_cast<uint8_t>(c);
  }
  key.push(word);
}

template <class T>
void add_to_fast_key(FastKey& key, c10::ArrayRef<T> list, bool matters) {
  key.push(list.size());
  for (const auto& item : list) {
    add_to_fast_key(key, item, matters);
  }
}

template <size_t n>
void add_to_fast_key(FastKey& key, const std::array<bool, n>& flags, bool) {
  for (const bool flag : flags) {
    key.push(flag);
  }
}

inline void
add_to_fast_key(FastKey& key, const at::ITensorListRef& list, bool matters) {
  key.push(list.size());
  for (const at::Tensor& item : list) {
    add_to_fast_key(key, item, matters);
  }
}

template <class T>
void add_to_fast_key(
    FastKey& key,
    const std::optional<T>& value,
    bool matters) {
  key.push(value.has_value());
  if (value) {
    add_to_fast_key(key, *value, matters);
  }
}

inline void
add_to_fast_key(FastKey& key, at::OptionalIntArrayRef list, bool matters) {
  key.push(list.has_value());
  if (list) {
    add_to_fast_key(key, *list, matters);
  }
}

/// The decisions of one operator that one rank used last.
class FastTable {
 public:
  struct Entry {
    FastKey key;
    /// Null: such calls take the boxed path.
    std::shared_ptr<const Decision> decision;
    bool used = false;
    /// See takes_stock_autograd().
    bool stock = false;
  };

  const Entry* find(const FastKey& key) const {
    const Entry& entry = entries_[key.bucket(kBits)];
    return entry.used && entry.key == key ? &entry : nullptr;
  }
  void insert(
      const FastKey& key,
      std::shared_ptr<const Decision> decision,
      bool stock) {
    entries_[key.bucket(kBits)] = {key, std::move(decision), true, stock};
  }

 private:
  static constexpr size_t kBits = 6;
  std::array<Entry, size_t{1} << kBits> entries_;
};

} // namespace dtensor::detail

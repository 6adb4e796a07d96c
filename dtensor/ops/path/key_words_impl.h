// SPDX-License-Identifier: BSD-3-Clause
// Cache keys of calls as lists of words, of bounded and of any length. The
// words are defined in ops/path/call_key_impl.h.
#pragma once

#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>
#include <dtensor/tensor/meta_impl.h>

#include <algorithm>
#include <array>

namespace dtensor::detail {

/// Key of an unboxed call, of bounded length. Unusable for a longer call, and
/// for a call that only the boxed path can run (because of a plain tensor with
/// dimensions, or a view that is a copy).
class ShortKey {
 public:
  static constexpr size_t kWords = 24;
  static constexpr bool kOfUnboxed = true;

  void push(uint64_t word) {
    if (C10_UNLIKELY(size_ == kWords)) {
      make_unusable();
      return;
    }
    words_[size_++] = word;
    hash_ = (hash_ ^ word) * 0x9E3779B97F4A7C15ull;
  }
  void make_unusable() {
    special_ |= kUnusable;
  }
  void note(const DTensorMeta& meta) {
    if (C10_UNLIKELY(meta.has_extras())) {
      note_extras(meta);
    }
  }

  /// Returns false for most calls; true if the key is unusable or
  /// has_boundaries().
  bool special() const {
    return special_ != 0;
  }
  bool usable() const {
    return (special_ & kUnusable) == 0;
  }
  /// Returns true if a style is attached to one of the arguments.
  bool has_boundaries() const {
    return (special_ & kBoundaries) != 0;
  }
  c10::ArrayRef<uint64_t> words() const {
    return {words_.data(), size_};
  }
  /// Returns the hash bucket: the high bits of a product, which are mixed best.
  size_t bucket(size_t bits) const {
    return static_cast<size_t>(hash_ >> (64 - bits));
  }
  friend bool operator==(const ShortKey& a, const ShortKey& b) {
    return a.hash_ == b.hash_ && a.size_ == b.size_ &&
        std::equal(
               a.words_.begin(), a.words_.begin() + a.size_, b.words_.begin());
  }

 private:
  enum : uint32_t { kUnusable = 1, kBoundaries = 2 };

  [[gnu::noinline]] void note_extras(const DTensorMeta& meta) {
    if (meta.view_facts != nullptr && meta.view_facts->copied_from != nullptr) {
      make_unusable();
    }
    if (meta.boundaries != nullptr) {
      special_ |= kBoundaries;
    }
  }

  uint64_t hash_ = 0xFF51AFD7ED558CCDull;
  uint32_t size_ = 0;
  uint32_t special_ = 0;
  std::array<uint64_t, kWords> words_; // the first size_ are set
};

/// Key of any call; unusable if an argument is of an unknown kind.
class LongKey {
 public:
  static constexpr bool kOfUnboxed = false;

  void push(uint64_t word) {
    words_.push_back(word);
  }
  void make_unusable() {
    usable_ = false;
  }
  void note(const DTensorMeta&) {}

  bool usable() const {
    return usable_;
  }
  c10::ArrayRef<uint64_t> words() const {
    return words_;
  }

 private:
  c10::SmallVector<uint64_t, 24> words_;
  bool usable_ = true;
};

} // namespace dtensor::detail

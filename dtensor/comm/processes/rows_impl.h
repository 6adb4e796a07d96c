// SPDX-License-Identifier: BSD-3-Clause
// Rows: a part of a tensor along one dimension, as bytes.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/accumulate.h>
#include <dtensor/layout/shard_math.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>
#include <vector>

namespace dtensor::detail {

/// `count` times `row` bytes, the next `stride` bytes behind the last. They are
/// numbered through as if they lay one after the other.
template <typename Byte>
struct Rows {
  Byte* data = nullptr;
  int64_t row = 0;
  int64_t stride = 0;
  int64_t count = 1;

  int64_t bytes() const {
    return row * count;
  }
  bool is_dense() const {
    return count <= 1 || row == stride;
  }
  /// Calls fn(address, length) for what `range` consists of, in order.
  template <typename Fn>
  void each(Interval range, const Fn& fn) const {
    if (is_dense()) {
      fn(data + range.begin, range.size());
      return;
    }
    for (int64_t at = range.begin; at < range.end;) {
      const int64_t begin = at % row;
      const int64_t length = std::min(row - begin, range.end - at);
      fn(data + at / row * stride + begin, length);
      at += length;
    }
  }
};
using Source = Rows<const std::byte>;
using Target = Rows<std::byte>;

inline void copy_bytes(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes > 0) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }
}

/// The first `bytes` from `begin` on; fewer where there are not so many.
template <typename Byte>
Interval piece(const Rows<Byte>& rows, int64_t begin, int64_t bytes) {
  const int64_t from = std::min(begin, rows.bytes());
  return {from, std::min(from + bytes, rows.bytes())};
}

inline void copy(const Source& from, Interval range, std::byte* to) {
  from.each(range, [&](const std::byte* data, int64_t length) {
    copy_bytes(to, data, length);
    to += length;
  });
}

inline void copy(const std::byte* from, const Target& to, Interval range) {
  to.each(range, [&](std::byte* data, int64_t length) {
    copy_bytes(data, from, length);
    from += length;
  });
}

/// All of `from`, which is as much as `to`.
inline void copy(const Source& from, const Target& to) {
  int64_t at = 0;
  to.each({0, to.bytes()}, [&](std::byte* data, int64_t length) {
    copy(from, {at, at + length}, data);
    at += length;
  });
}

/// Along `dim` of a contiguous tensor, the indices [begin, begin + size).
template <typename Byte>
Rows<Byte>
rows_along(const at::Tensor& tensor, int64_t dim, int64_t begin, int64_t size) {
  if (tensor.numel() == 0) {
    return {};
  }
  const auto cut = static_cast<size_t>(dim);
  const int64_t item = c10::multiply_integers(tensor.sizes().slice(cut + 1)) *
      static_cast<int64_t>(tensor.element_size());
  Byte* data = nullptr;
  if constexpr (std::is_const_v<Byte>) {
    data = static_cast<Byte*>(tensor.const_data_ptr());
  } else {
    data = static_cast<Byte*>(tensor.mutable_data_ptr());
  }
  return {
      .data = data + begin * item,
      .row = size * item,
      .stride = tensor.sizes()[cut] * item,
      .count = c10::multiply_integers(tensor.sizes().slice(0, cut))};
}

/// The parts of these sizes along `dim`, one behind the other.
template <typename Byte>
std::vector<Rows<Byte>>
cut(const at::Tensor& tensor, int64_t dim, SizesRef sizes) {
  std::vector<Rows<Byte>> parts;
  int64_t begin = 0;
  for (const int64_t size : sizes) {
    parts.push_back(rows_along<Byte>(tensor, dim, begin, size));
    begin += size;
  }
  return parts;
}

template <typename Byte>
int64_t longest_of(const std::vector<Rows<Byte>>& parts) {
  int64_t longest = 0;
  for (const Rows<Byte>& part : parts) {
    longest = std::max(longest, part.bytes());
  }
  return longest;
}

inline Source all_of(const at::Tensor& tensor) {
  return {
      .data = static_cast<const std::byte*>(tensor.const_data_ptr()),
      .row = static_cast<int64_t>(tensor.nbytes())};
}

inline Target all_of_result(const at::Tensor& tensor) {
  return {
      .data = static_cast<std::byte*>(tensor.mutable_data_ptr()),
      .row = static_cast<int64_t>(tensor.nbytes())};
}

} // namespace dtensor::detail

// SPDX-License-Identifier: BSD-3-Clause
// Rows: a slice of a tensor along one dimension, as strided bytes.
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

/// `count` rows of `row` bytes each, `stride` bytes apart. Bytes are addressed
/// by their position in the concatenation of all rows.
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
  /// Calls fn(address, length) for each contiguous run of `range`, in order.
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

/// Returns up to `bytes` bytes from `begin` on; fewer if the rows end before.
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

/// Copies all bytes of `from` to `to`. Both must have the same number of bytes.
inline void copy(const Source& from, const Target& to) {
  int64_t at = 0;
  to.each({0, to.bytes()}, [&](std::byte* data, int64_t length) {
    copy(from, {at, at + length}, data);
    at += length;
  });
}

/// Returns the indices [begin, begin + size) along `dim` of a contiguous
/// tensor.
template <typename Byte>
Rows<Byte>
rows_along(const at::Tensor& tensor, int64_t dim, int64_t begin, int64_t size) {
  if (tensor.numel() == 0) {
    return {};
  }
  const auto axis = static_cast<size_t>(dim);
  const int64_t item = c10::multiply_integers(tensor.sizes().slice(axis + 1)) *
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
      .stride = tensor.sizes()[axis] * item,
      .count = c10::multiply_integers(tensor.sizes().slice(0, axis))};
}

/// Splits a tensor along `dim` into consecutive slices of the given sizes.
template <typename Byte>
std::vector<Rows<Byte>>
split_rows(const at::Tensor& tensor, int64_t dim, SizesRef sizes) {
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

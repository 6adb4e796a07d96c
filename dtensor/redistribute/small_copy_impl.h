// SPDX-License-Identifier: BSD-3-Clause
// Copies without autograd history. Small tensors are copied directly, which
// costs less than LibTorch's dispatch of copy_().
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_strided.h>
#include <dtensor/layout/shard_math.h>
#include <dtensor/redistribute/only_strided_impl.h>

#include <cstdint>
#include <cstring>

namespace dtensor::detail {

/// A pointer to the first element, and the strides in elements.
template <class Element>
struct Elements {
  Element* first;
  SizesRef strides;
};

// Copies the elements, recursively over the dimensions from `d` on.
template <class Element>
void copy_elements(
    SizesRef sizes,
    size_t d,
    Elements<const Element> from,
    Elements<Element> to) {
  const auto from_step = from.strides[d];
  const auto to_step = to.strides[d];
  for (int64_t i = 0; i < sizes[d]; ++i) {
    const auto* const source = from.first + i * from_step;
    auto* const target = to.first + i * to_step;
    if (d + 1 == sizes.size()) {
      std::memcpy(target, source, sizeof(Element));
    } else {
      copy_elements<Element>(
          sizes, d + 1, {source, from.strides}, {target, to.strides});
    }
  }
}

template <class Element>
void copy_elements(const at::Tensor& from, const at::Tensor& to) {
  copy_elements<Element>(
      from.sizes(),
      0,
      {static_cast<const Element*>(from.const_data_ptr()), from.strides()},
      {static_cast<Element*>(to.mutable_data_ptr()), to.strides()});
}

/// Returns a copy of `t` with `strides`, which must be dense. Records no
/// autograd history.
inline at::Tensor copied(const at::Tensor& t, SizesRef strides) {
  constexpr size_t kSmall = 1024;
  const auto item = t.element_size();
  const bool is_odd = item != sizeof(uint32_t) && item != sizeof(uint64_t);
  if (is_odd || t.nbytes() > kSmall || t.dim() == 0 || !t.is_cpu() ||
      !is_only_strided(t)) {
    return at::empty_strided(t.sizes(), strides, t.options()).copy_(t);
  }
  at::Tensor copy =
      at::detail::empty_strided_cpu(t.sizes(), strides, t.scalar_type());
  if (t.numel() == 0) {
    return copy;
  }
  if (t.strides() == strides) {
    std::memcpy(copy.mutable_data_ptr(), t.const_data_ptr(), t.nbytes());
  } else if (item == sizeof(uint32_t)) {
    copy_elements<uint32_t>(t, copy);
  } else {
    copy_elements<uint64_t>(t, copy);
  }
  return copy;
}

} // namespace dtensor::detail

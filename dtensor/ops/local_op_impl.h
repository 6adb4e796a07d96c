// SPDX-License-Identifier: BSD-3-Clause
// What an unboxed kernel calls on local tensors: the operator, but for two that
// a training step calls of each parameter, and of which LibTorch makes several.
// Those do by themselves what the last of them does.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/detach_ops.h>
#include <ATen/ops/t_ops.h>
#include <dtensor/redistribute/only_strided_impl.h>

#include <utility>

namespace dtensor::detail {

template <class Op>
struct LocalOp {
  template <class... Args>
  static decltype(auto) call(Args&&... args) {
    return Op::call(std::forward<Args>(args)...);
  }
};

/// Whether there is memory behind all of the matrix `t`: what is resized, as by
/// those who free it for a while, may have less.
inline bool has_its_memory(const at::Tensor& t) {
  const auto last = t.storage_offset() + (t.size(0) - 1) * t.stride(0) +
      (t.size(1) - 1) * t.stride(1);
  const auto bytes = static_cast<size_t>(last + 1) * t.dtype().itemsize();
  return t.numel() == 0 || bytes <= t.storage().nbytes();
}

/// A second tensor of the same memory, whose shape nobody changes.
template <>
struct LocalOp<at::_ops::detach> {
  static at::Tensor call(const at::Tensor& self) {
    if (!is_only_strided(self)) {
      return at::_ops::detach::call(self);
    }
    const auto* impl = self.unsafeGetTensorImpl();
    return at::Tensor(impl->shallow_copy_and_detach(
        impl->version_counter(), /*allow_tensor_metadata_change=*/false));
  }
};

/// As as_strided() makes it.
template <>
struct LocalOp<at::_ops::t> {
  static at::Tensor call(const at::Tensor& self) {
    if (self.dim() != 2 || !is_only_strided(self) || !has_its_memory(self)) {
      return at::_ops::t::call(self);
    }
    auto view = at::detail::make_tensor<c10::TensorImpl>(
        c10::TensorImpl::VIEW,
        c10::Storage(self.storage()),
        self.key_set(),
        self.dtype());
    auto* const impl = view.unsafeGetTensorImpl();
    impl->set_storage_offset(self.storage_offset());
    impl->set_sizes_and_strides(
        at::IntArrayRef({self.size(1), self.size(0)}),
        at::IntArrayRef({self.stride(1), self.stride(0)}));
    return view;
  }
};

} // namespace dtensor::detail

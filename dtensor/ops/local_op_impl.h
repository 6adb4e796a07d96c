// SPDX-License-Identifier: BSD-3-Clause
// Call of an operator on local tensors by an unboxed kernel. detach() and t()
// are specialized: a training step calls them for each parameter, and LibTorch
// implements them by several operators. The specializations directly do the
// work of the last of these.
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

/// Returns true if there is memory behind every element of the matrix `t`. A
/// storage that was resized, for example to free it for a while, may be
/// smaller.
inline bool has_its_memory(const at::Tensor& t) {
  const auto last = t.storage_offset() + (t.size(0) - 1) * t.stride(0) +
      (t.size(1) - 1) * t.stride(1);
  const auto bytes = static_cast<size_t>(last + 1) * t.dtype().itemsize();
  return t.numel() == 0 || bytes <= t.storage().nbytes();
}

/// Returns a second tensor of the same memory, with fixed shape.
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

/// Returns the same view as as_strided() would.
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

// SPDX-License-Identifier: BSD-3-Clause
// Tensors on the meta device, and their materialization in place. Modules and
// optimizers that hold the tensor keep the same TensorImpl.
#pragma once

#include <dtensor/api.h>

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

namespace dtensor::detail {

/// A note on a plain meta tensor: the device of the future tensor. The recorded
/// initialization of a tensor derives from it (deferred/tape_impl.h).
struct MetaNote : c10::BackendMeta {
  explicit MetaNote(c10::Device meant_for) : device(meant_for) {}
  c10::Device device;
};

/// A note on the local tensor of a distributed meta tensor: the plain tensor
/// that was distributed.
struct MetaShardNote final : c10::BackendMeta {
  explicit MetaShardNote(at::Tensor plain) : unsharded(std::move(plain)) {}
  at::Tensor unsharded;
};

/// Returns the plain meta tensor that `t`, a meta tensor, is or was distributed
/// from; undefined if unknown.
DTENSOR_INTERNAL_API at::Tensor plain_meta_of(const at::Tensor& t);

/// Replaces the contents of `self` by the contents of `other`, which may be a
/// DTensor or plain, and on any device. Gradients, hooks and parallel styles of
/// `self` are kept, except for a gradient on the meta device.
DTENSOR_INTERNAL_API void replace_tensor_impl(
    const at::Tensor& self,
    const at::Tensor& other);

/// Returns an empty tensor of the same shape, strides and dtype on `device`.
DTENSOR_INTERNAL_API at::Tensor empty_twin(
    const at::Tensor& t,
    c10::Device device);

/// Returns an uninitialized tensor like the meta tensor `self`. For a DTensor,
/// the result is its local shard on the device type of its mesh.
DTENSOR_INTERNAL_API at::Tensor allocated(const at::Tensor& self);

/// Replaces the meta tensor `self` by allocated(self), in place.
DTENSOR_INTERNAL_API void allocate(const at::Tensor& self);

} // namespace dtensor::detail

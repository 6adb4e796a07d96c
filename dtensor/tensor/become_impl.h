// SPDX-License-Identifier: BSD-3-Clause
// Tensors on the meta device, and how they come to life in place: whoever holds
// the tensor, a module or an optimizer, holds it still.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

namespace dtensor::detail {

/// What a plain meta tensor may carry: the device that it is meant for. What
/// recorded how it came to be derives from it (deferred/tape_impl.h).
struct MetaNote : c10::BackendMeta {
  explicit MetaNote(c10::Device meant_for) : device(meant_for) {}
  c10::Device device;
};

/// What the part of a distributed meta tensor carries: the plain one that it
/// was before.
struct PartOfMeta final : c10::BackendMeta {
  explicit PartOfMeta(at::Tensor plain) : whole(std::move(plain)) {}
  at::Tensor whole;
};

/// The plain meta tensor that `t`, on the meta device, is or was distributed
/// from; undefined where that is not known.
at::Tensor plain_meta_of(const at::Tensor& t);

/// Makes `self` what `other` is, a DTensor or not, on another device or not.
/// Gradients, hooks and styles that ride on `self` stay, but for a gradient on
/// the meta device.
void become(const at::Tensor& self, const at::Tensor& other);

/// An empty tensor of the same shape, strides and dtype on that device.
at::Tensor empty_twin(const at::Tensor& t, c10::Device device);

/// What a meta tensor would be with memory of arbitrary contents: of a DTensor
/// this rank's part, on the device type of its mesh.
at::Tensor allocated(const at::Tensor& self);

/// Makes it that.
void allocate(const at::Tensor& self);

} // namespace dtensor::detail

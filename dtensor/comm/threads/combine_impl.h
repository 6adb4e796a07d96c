// SPDX-License-Identifier: BSD-3-Clause
// What a member of a ThreadGroup makes of the tensors that all members gave,
// once their calls agree and while nobody changes those tensors.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dtensor/comm/threads/call_impl.h>
#include <dtensor/layout/shard_math.h>

namespace dtensor::detail {

inline void finish_device_work(const at::Tensor& tensor) {
  if (tensor.defined() && !tensor.device().is_cpu()) {
    const c10::impl::VirtualGuardImpl device(tensor.device().type());
    device.getStream(tensor.device()).synchronize();
  }
}

inline void finish_device_work(const Call& call) {
  for (const at::Tensor& tensor : call.inputs) {
    finish_device_work(tensor);
  }
}

inline at::Tensor empty(at::IntArrayRef sizes, const at::Tensor& like) {
  return at::empty(sizes, like.options());
}

/// The result of member `member`, on its device, in its call's `output` if
/// that is defined.
at::Tensor gathered(const Calls& calls, int64_t member);
at::Tensor exchanged(const Calls& calls, int64_t member);
at::Tensor reduce_scattered(const Calls& calls, int64_t member);

/// Reduces the elements `range` of the inputs, all of one shape, into the
/// outputs of all members. `member` does it, on its device.
void reduce_range(const Calls& calls, int64_t member, Interval range);

} // namespace dtensor::detail

// SPDX-License-Identifier: BSD-3-Clause
// Functions that compute a rank's result from the tensors of all members, once
// their calls agree and while no member changes those tensors.
#pragma once

#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dtensor/comm/backend/call_impl.h>
#include <dtensor/comm/rank/rank_memory_impl.h>
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

/// Records the use of `tensor` on this rank's current stream. Its memory came
/// from another rank's stream and must not be reused before the current stream
/// is done.
inline void take_over(const at::Tensor& tensor) {
  if (!tensor.device().is_cpu()) {
    const c10::impl::VirtualGuardImpl device(tensor.device().type());
    device.recordDataPtrOnStream(
        tensor.storage().data_ptr(), device.getStream(tensor.device()));
  }
}

inline at::Tensor empty(at::IntArrayRef sizes, const at::Tensor& like) {
  return empty_result(sizes, like.options());
}

inline const Call& call_of(const Calls& calls, int64_t member) {
  return *calls[static_cast<size_t>(member)];
}

/// Returns all inputs, copied to `device` where needed.
std::vector<at::Tensor> inputs_on(const at::Device& device, const Calls& calls);

/// Returns true if all `sizes` equal `size`, or `sizes` is empty.
bool are_all(SizesRef sizes, int64_t size);

/// Returns the shard of [0, size) that belongs to `member`: by `sizes`, or the
/// torch.chunk if `sizes` is empty.
Interval
shard_range_of(int64_t size, int64_t parts, SizesRef sizes, int64_t member);

/// Returns the shard of `member` in every member's input along `dim`, on
/// `member`'s device.
std::vector<at::Tensor>
shards_for(const Calls& calls, int64_t member, int64_t dim, SizesRef sizes);

/// Returns the output tensor of `call`: its `out` if defined, else a new tensor
/// of these sizes.
at::Tensor output_of(const Call& call, at::IntArrayRef sizes);
at::Tensor concatenated(
    const Call& mine,
    const std::vector<at::Tensor>& parts,
    int64_t dim);

/// Return the result for `member`, on its device, in the `out` of its call if
/// defined.
at::Tensor gathered(const Calls& calls, int64_t member);
at::Tensor exchanged(const Calls& calls, int64_t member);
at::Tensor reduce_scattered(const Calls& calls, int64_t member);

/// Reduces the elements in `range` of the inputs, all of one shape, into the
/// outputs of all members. Computes on `member`'s device.
void reduce_range(const Calls& calls, int64_t member, Interval range);

} // namespace dtensor::detail

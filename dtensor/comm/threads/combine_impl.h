// SPDX-License-Identifier: BSD-3-Clause
// What a rank makes of the tensors that all members of its group gave, once
// their calls agree and while nobody changes those tensors.
#pragma once

#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dtensor/comm/call_impl.h>
#include <dtensor/comm/rank_memory_impl.h>
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

/// Of a tensor whose memory came from another rank's stream: it is not to be
/// used again before this rank's current stream has come that far.
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

/// All inputs, on that device.
std::vector<at::Tensor> inputs_on(const at::Device& device, const Calls& calls);

/// Whether all sizes are this one, or none are given.
bool are_all(SizesRef sizes, int64_t size);

/// The part of [0, size) that `member` is to get: by `sizes`, or its chunk.
Interval part_of(int64_t size, int64_t parts, SizesRef sizes, int64_t member);

/// What every member has of that part along `dim`, on `member`'s device.
std::vector<at::Tensor>
parts_for(const Calls& calls, int64_t member, int64_t dim, SizesRef sizes);

/// Where the result of `call` goes, which is of those sizes.
at::Tensor output_of(const Call& call, at::IntArrayRef sizes);
at::Tensor concatenated(
    const Call& mine,
    const std::vector<at::Tensor>& parts,
    int64_t dim);

/// The result of member `member`, on its device, in its call's `output` if
/// that is defined.
at::Tensor gathered(const Calls& calls, int64_t member);
at::Tensor exchanged(const Calls& calls, int64_t member);
at::Tensor reduce_scattered(const Calls& calls, int64_t member);

/// Reduces the elements `range` of the inputs, all of one shape, into the
/// outputs of all members. `member` does it, on its device.
void reduce_range(const Calls& calls, int64_t member, Interval range);

} // namespace dtensor::detail

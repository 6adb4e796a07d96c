// SPDX-License-Identifier: BSD-3-Clause
// all_gather for threads: every rank copies the shards of all ranks.
#include <dtensor/comm/threads/thread_backend_impl.h>

#include <dtensor/comm/threads/thread_meeting_impl.h>

namespace dtensor::detail {
namespace {

void gather_small(
    const Signature& signature,
    Published members,
    const at::Tensor& out) {
  const Strips strips(signature);
  const int64_t bytes = strips.size * strips.elements * strips.item;
  auto* to = static_cast<std::byte*>(out.data_ptr());
  if (bytes == 0) {
    return;
  }
  for (int64_t row = 0; row < strips.outer; ++row) {
    for (const void* data : members) {
      std::memcpy(to, advance(data, row * bytes), static_cast<size_t>(bytes));
      to += bytes;
    }
  }
}

} // namespace

at::Tensor gathered(const Calls& calls, int64_t member) {
  const Call& mine = call_of(calls, member);
  return concatenated(mine, inputs_on(mine.input().device(), calls), mine.dim);
}

at::Tensor ThreadBackend::all_gather(Collective& c) {
  const at::Tensor& input = c.input();
  Signature signature = are_all(c.sizes, input.size(c.dim))
      ? sign(CollectiveKind::kAllGather, input)
      : Signature(); // a signature holds only one size
  signature.dim = static_cast<uint8_t>(c.dim);
  at::DimVector sizes(input.sizes());
  sizes[static_cast<size_t>(c.dim)] *= size();
  auto small = try_fast_path(
      signature, input, sizes, [&](Published members, const at::Tensor& out) {
        gather_small(signature, members, out);
      });
  if (small) {
    return *std::move(small);
  }
  const PlainTensors guard;
  Call call(std::move(c));
  call.inputs[0] = published(call.inputs[0]);
  return meet(call, [&] { return gathered(channel_->calls(), rank()); });
}

} // namespace dtensor::detail

// SPDX-License-Identifier: BSD-3-Clause
// reduce_scatter for threads: every rank reduces its own shard.
#include <dtensor/comm/threads/thread_backend_impl.h>

#include <dtensor/comm/backend/reduce_impl.h>
#include <dtensor/comm/threads/thread_meeting_impl.h>

namespace dtensor::detail {
namespace {

void reduce_scatter_small(
    const Signature& signature,
    Published members,
    int64_t rank,
    const at::Tensor& out) {
  const Strips strips(signature);
  const auto ranks = static_cast<int64_t>(members.size());
  const Interval mine = chunk(strips.size, ranks, rank);
  if (!has_loop(signature.dtype, signature.op)) {
    const PlainTensors guard;
    c10::SmallVector<at::Tensor, 8> inputs;
    for (const void* data : members) {
      inputs.push_back(tensor_over(data, signature)
                           .narrow(signature.dim, mine.begin, mine.size()));
    }
    reduce_into(out, inputs, signature.op);
    return;
  }
  const int64_t length = mine.size() * strips.elements;
  c10::SmallVector<const void*, 8> from(members.begin(), members.end());
  for (int64_t row = 0; row < strips.outer; ++row) {
    const int64_t first = (row * strips.size + mine.begin) * strips.elements;
    for (size_t member = 0; member < from.size(); ++member) {
      from[member] = advance(members[member], first * strips.item);
    }
    std::byte* to =
        static_cast<std::byte*>(out.data_ptr()) + row * length * strips.item;
    reduce_loop(signature.dtype, signature.op, from, to, length);
  }
}

} // namespace

at::Tensor reduce_scattered(const Calls& calls, int64_t member) {
  const Call& mine = call_of(calls, member);
  const auto parts = shards_for(calls, member, mine.dim, mine.sizes);
  at::Tensor out = output_of(mine, parts.front().sizes());
  reduce_into(out, parts, mine.op);
  finish_device_work(out);
  return out;
}

at::Tensor ThreadBackend::reduce_scatter(Collective& c) {
  const at::Tensor& input = c.input();
  const Interval mine =
      shard_range_of(input.size(c.dim), size(), c.sizes, rank());
  Signature signature = c.sizes.empty()
      ? sign(CollectiveKind::kReduceScatter, input)
      : Signature(); // a signature does not hold shard sizes
  signature.op = c.op;
  signature.dim = static_cast<uint8_t>(c.dim);
  at::DimVector sizes(input.sizes());
  sizes[static_cast<size_t>(c.dim)] = mine.size();
  auto small = try_fast_path(
      signature, input, sizes, [&](Published members, const at::Tensor& out) {
        reduce_scatter_small(signature, members, rank(), out);
      });
  if (small) {
    return *std::move(small);
  }
  const PlainTensors guard;
  Call call(std::move(c));
  call.inputs[0] = published(call.inputs[0]);
  return meet(
      call, [&] { return reduce_scattered(channel_->calls(), rank()); });
}

} // namespace dtensor::detail

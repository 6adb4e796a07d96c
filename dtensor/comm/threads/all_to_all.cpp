// SPDX-License-Identifier: BSD-3-Clause
// Every rank copies what is for it out of the inputs of all.
#include <ATen/ops/cat.h>
#include <dtensor/comm/part_buffers_impl.h>
#include <dtensor/comm/threads/thread_meeting_impl.h>

namespace dtensor::detail {
namespace {

void exchange_small(
    const Signature& signature,
    Published members,
    int64_t rank,
    const at::Tensor& out) {
  const PlainTensors guard;
  const int64_t shard_dim = signature.root;
  const int64_t size = signature.sizes[signature.root];
  const auto ranks = static_cast<int64_t>(members.size());
  const Interval kept = chunk(size, ranks, rank);
  std::vector<at::Tensor> parts;
  for (const void* data : members) {
    parts.push_back(tensor_over(data, signature)
                        .narrow(shard_dim, kept.begin, kept.size()));
  }
  at::Tensor to = out;
  at::cat_out(to, parts, signature.dim);
}

} // namespace

at::Tensor exchanged(const Calls& calls, int64_t member) {
  const Call& mine = call_of(calls, member);
  return concatenated(
      mine, parts_for(calls, member, mine.shard_dim, {}), mine.dim);
}

at::Tensor ThreadBackend::shard_dim_alltoall(
    const at::Tensor& input,
    int64_t gather_dim,
    int64_t shard_dim,
    SizesRef parts) {
  Signature signature = are_all(parts, input.size(gather_dim))
      ? sign(CollectiveKind::kAllToAll, input)
      : Signature();
  signature.dim = static_cast<uint8_t>(gather_dim);
  signature.root = static_cast<uint16_t>(shard_dim);
  at::DimVector sizes(input.sizes());
  sizes[static_cast<size_t>(gather_dim)] *= size();
  auto& cut = sizes[static_cast<size_t>(shard_dim)];
  cut = chunk(cut, size(), rank()).size();
  const auto small = meet_small(
      signature, &input, sizes, [&](Published members, const at::Tensor& out) {
        exchange_small(signature, members, rank(), out);
      });
  if (small) {
    return *small;
  }
  const PlainTensors guard;
  Call call;
  call.kind = CollectiveKind::kAllToAll;
  call.inputs = {published(input)};
  call.dim = gather_dim;
  call.shard_dim = shard_dim;
  call.sizes = Sizes(parts);
  return meet(call, [&] { return exchanged(channel_->calls(), rank()); });
}

GroupBackend::Tensors ThreadBackend::exchange_parts(
    const Tensors& inputs,
    Shapes shapes) {
  const PlainTensors guard;
  Call call;
  call.kind = CollectiveKind::kAllToAll;
  for (const at::Tensor& input : inputs) {
    call.inputs.push_back(published(input));
  }
  call.shapes = shapes.vec();
  const at::Device device = inputs.front().device();
  return meet(call, [&] {
    Tensors result;
    for (int64_t member = 0; member < size(); ++member) {
      const auto& theirs = channel_->call(member).inputs;
      result.push_back(copy_to(device, theirs[static_cast<size_t>(rank())]));
    }
    finish_device_work(result.front());
    return result;
  });
}

at::Tensor ThreadBackend::all_to_all(
    const at::Tensor& input,
    SizesRef sent,
    SizesRef received) {
  const PlainTensors guard;
  return at::cat(exchange_parts(
      split(input, 0, sent), shapes_along(input.sizes(), 0, received)));
}

} // namespace dtensor::detail

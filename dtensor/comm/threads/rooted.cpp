// SPDX-License-Identifier: BSD-3-Clause
// broadcast, scatter and gather for threads: collectives with a root.
#include <dtensor/comm/threads/thread_backend_impl.h>

#include <dtensor/comm/threads/thread_meeting_impl.h>

namespace dtensor::detail {

at::Tensor ThreadBackend::broadcast(const at::Tensor& input, int64_t root) {
  Signature signature = sign(CollectiveKind::kBroadcast, input);
  signature.root = static_cast<uint16_t>(root);
  const bool gives = rank() == root;
  const auto small = try_fast_path(
      signature,
      gives ? c10::ArrayRef<at::Tensor>(input) : c10::ArrayRef<at::Tensor>(),
      input.sizes(),
      [&](Published members, const at::Tensor& out) {
        if (out.nbytes() > 0) {
          std::memcpy(
              out.data_ptr(), members[static_cast<size_t>(root)], out.nbytes());
        }
      });
  if (small) {
    return *small;
  }
  const PlainTensors guard;
  Call call;
  call.kind = CollectiveKind::kBroadcast;
  // Only the root's contents are read.
  call.inputs = {gives ? published(input) : input};
  call.root = root;
  return meet(call, [&] {
    at::Tensor out = copy_to(input.device(), channel_->call(root).input());
    finish_device_work(out);
    return out;
  });
}

at::Tensor ThreadBackend::scatter(
    const Tensors& inputs,
    const at::Tensor& like,
    int64_t root) {
  const PlainTensors guard;
  Call call;
  call.kind = CollectiveKind::kScatter;
  call.root = root;
  call.like = like;
  if (rank() == root) {
    for (const at::Tensor& input : inputs) {
      call.inputs.push_back(published(input));
    }
  }
  const at::Device device =
      rank() == root ? inputs.front().device() : like.device();
  return meet(call, [&] {
    const auto& parts = channel_->call(root).inputs;
    at::Tensor out = copy_to(device, parts[static_cast<size_t>(rank())]);
    finish_device_work(out);
    return out;
  });
}

GroupBackend::Tensors ThreadBackend::gather(
    const at::Tensor& input,
    Shapes /*shapes*/,
    int64_t root) {
  const PlainTensors guard;
  Call call;
  call.kind = CollectiveKind::kGather;
  call.inputs = {published(input)};
  call.root = root;
  return meet(call, [&] {
    Tensors result;
    if (rank() == root) {
      for (int64_t member = 0; member < size(); ++member) {
        result.push_back(
            copy_to(input.device(), channel_->call(member).input()));
      }
      finish_device_work(result.front());
    }
    return result;
  });
}

} // namespace dtensor::detail

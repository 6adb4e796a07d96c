// SPDX-License-Identifier: BSD-3-Clause
// broadcast, scatter and gather for threads: collectives with a root.
#include <dtensor/comm/threads/thread_backend_impl.h>

#include <dtensor/comm/threads/thread_meeting_impl.h>

namespace dtensor::detail {

at::Tensor ThreadBackend::broadcast(Collective& c) {
  const at::Tensor& input = c.input();
  const auto root = static_cast<size_t>(c.root);
  Signature signature = sign(CollectiveKind::kBroadcast, input);
  signature.root = static_cast<uint16_t>(c.root);
  const bool gives = rank() == c.root;
  auto small = try_fast_path(
      signature,
      gives ? c10::ArrayRef<at::Tensor>(input) : c10::ArrayRef<at::Tensor>(),
      input.sizes(),
      [&](Published members, const at::Tensor& out) {
        if (out.nbytes() > 0) {
          std::memcpy(out.data_ptr(), members[root], out.nbytes());
        }
      });
  if (small) {
    return *std::move(small);
  }
  const PlainTensors guard;
  const at::Device device = input.device();
  Call call(std::move(c));
  if (gives) { // only the root's contents are read
    call.inputs[0] = published(call.inputs[0]);
  }
  return meet(call, [&] {
    at::Tensor out = copy_to(device, channel_->call(call.root).input());
    finish_device_work(out);
    return out;
  });
}

at::Tensor ThreadBackend::scatter(Collective& c) {
  const PlainTensors guard;
  Call call(std::move(c));
  const at::Device device = call.example().device();
  for (at::Tensor& input : call.inputs) {
    input = published(input);
  }
  return meet(call, [&] {
    const auto& parts = channel_->call(call.root).inputs;
    at::Tensor out = copy_to(device, parts[static_cast<size_t>(rank())]);
    finish_device_work(out);
    return out;
  });
}

ThreadBackend::Tensors ThreadBackend::gather(Collective& c) {
  const PlainTensors guard;
  Call call(std::move(c));
  call.inputs[0] = published(call.inputs[0]);
  return meet(call, [&] {
    return rank() == call.root
        ? copies_of_inputs(call.input().device(), channel_->calls())
        : Tensors();
  });
}

} // namespace dtensor::detail

// SPDX-License-Identifier: BSD-3-Clause
// Point-to-point messages, barriers, strings, and collectives with a root.
#include <dtensor/comm/threads/thread_backend_impl.h>

#include <dtensor/comm/group/group_checks_impl.h>
#include <dtensor/comm/threads/thread_meeting_impl.h>

namespace dtensor::detail {
namespace {

// Returns copies of the inputs of all members, on `device`.
std::vector<at::Tensor> copies_of_inputs(
    const at::Device& device,
    const Calls& calls) {
  std::vector<at::Tensor> result;
  for (const Call* call : calls) {
    result.push_back(copy_to(device, call->input()));
  }
  finish_device_work(result.front());
  return result;
}

} // namespace

ThreadBackend::ThreadBackend(
    GroupMembers members,
    std::shared_ptr<ThreadHub> hub)
    : GroupBackend(std::move(members), {.plain = false, .sizes = false}),
      hub_(std::move(hub)),
      channel_(hub_->channel(this->members().ranks)) {}

InFlight ThreadBackend::submit(Collective&& c) {
  if (c.is_async) {
    return start(std::move(c));
  }
  switch (c.kind) {
    case CollectiveKind::kAllReduce:
      return all_reduce(c);
    case CollectiveKind::kAllGather:
      return all_gather(c);
    case CollectiveKind::kReduceScatter:
      return reduce_scatter(c);
    case CollectiveKind::kAllToAll:
      if (c.shard_dim >= 0) {
        return shard_dim_alltoall(c);
      }
      return all_to_all(c);
    case CollectiveKind::kBroadcast:
      return broadcast(c);
    case CollectiveKind::kScatter:
      return scatter(c);
    case CollectiveKind::kGather:
      return gather(c);
    case CollectiveKind::kSend:
      send(c);
      return CollectiveResult();
    case CollectiveKind::kRecv:
      return recv(c);
    case CollectiveKind::kBarrier:
      barrier();
      return CollectiveResult();
    case CollectiveKind::kAllGatherStrings:
      return all_gather_strings(c);
  }
  TORCH_INTERNAL_ASSERT(false, "unknown collective");
}

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
    call.inputs[0] = call.input().contiguous();
  }
  return meet(call, [&] {
    at::Tensor out = copy_to(device, channel_->call(call.root).input());
    finish_device_work(out);
    return out;
  });
}

at::Tensor ThreadBackend::scatter(Collective& c) {
  return meet_plain(c, [&](const Call& call) {
    const auto& parts = channel_->call(call.root).inputs;
    at::Tensor out =
        copy_to(call.example().device(), parts[static_cast<size_t>(rank())]);
    finish_device_work(out);
    return out;
  });
}

ThreadBackend::Tensors ThreadBackend::gather(Collective& c) {
  return meet_plain(c, [&](const Call& call) {
    return rank() == call.root
        ? copies_of_inputs(call.input().device(), channel_->calls())
        : Tensors();
  });
}

// Sends a copy, so the sender does not wait for the receiver.
void ThreadBackend::send(const Collective& c) {
  const PlainTensors guard;
  noting_place(c.name(), [&] {
    at::Tensor message = copy_to(c.input().device(), c.input());
    finish_device_work(message);
    channel_->send_mail(rank(), c.root, c.tag, std::move(message));
  });
}

at::Tensor ThreadBackend::recv(const Collective& c) {
  const PlainTensors guard;
  return noting_place(c.name(), [&] {
    at::Tensor message = channel_->take_mail(c.root, rank(), c.tag, label());
    check_received(
        members(), c.root, c.like, message, message.sizes() == c.like.sizes());
    take_over(message);
    return message.to(c.like.device());
  });
}

void ThreadBackend::barrier() {
  Signature signature;
  signature.small = 1;
  if (try_fast_path(signature, {}, {0}, [](Published, const at::Tensor&) {})) {
    return;
  }
  Call call;
  meet(call, [] {});
}

ThreadBackend::Tensors ThreadBackend::all_gather_strings(Collective& c) {
  return meet_plain(c, [&](const Call&) {
    return copies_of_inputs(at::kCPU, channel_->calls());
  });
}

void ThreadBackend::assume(const Spec& spec) {
  channel_->notes(rank()).add(spec);
}

void ThreadBackend::set_operator_errors(
    int64_t total,
    const std::string& last) {
  channel_->notes(rank()).set_errors(total, last);
}

} // namespace dtensor::detail

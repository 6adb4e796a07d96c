// SPDX-License-Identifier: BSD-3-Clause
// Point-to-point messages, and collectives that move no tensors.
#include <dtensor/comm/threads/thread_backend_impl.h>

#include <dtensor/comm/group_checks_impl.h>
#include <dtensor/comm/threads/thread_meeting_impl.h>
#include <dtensor/error.h>

namespace dtensor::detail {

ThreadBackend::ThreadBackend(
    GroupMembers members,
    std::shared_ptr<ThreadHub> hub)
    : GroupBackend(std::move(members), {.plain = false, .sizes = false}),
      hub_(std::move(hub)),
      channel_(hub_->channel(this->members().ranks)) {}

// Sends a copy, so the sender does not wait for the receiver.
void ThreadBackend::send(const at::Tensor& input, int64_t to, int64_t tag) {
  const PlainTensors guard;
  noting_place(to_string(CollectiveKind::kSend), [&] {
    at::Tensor message = copy_to(input.device(), input);
    finish_device_work(message);
    channel_->send_mail(rank(), to, tag, std::move(message));
  });
}

at::Tensor
ThreadBackend::recv(const at::Tensor& like, int64_t from, int64_t tag) {
  const PlainTensors guard;
  return noting_place(to_string(CollectiveKind::kRecv), [&] {
    at::Tensor message = channel_->take_mail(from, rank(), tag, label());
    check_received(
        members(), from, like, message, message.sizes() == like.sizes());
    take_over(message);
    return message.to(like.device());
  });
}

void ThreadBackend::barrier() {
  Signature signature;
  signature.small = 1;
  if (try_fast_path(signature, {}, {0}, [](Published, const at::Tensor&) {})) {
    return;
  }
  Call call;
  call.kind = CollectiveKind::kBarrier;
  meet(call, [] {});
}

std::vector<std::string> ThreadBackend::all_gather_strings(
    const std::string& mine) {
  Call call;
  call.text = mine;
  return meet(call, [&] {
    std::vector<std::string> result;
    for (int64_t member = 0; member < size(); ++member) {
      result.push_back(channel_->call(member).text);
    }
    return result;
  });
}

void ThreadBackend::assume(const Spec& spec) {
  channel_->assumed(rank()).add(spec);
}

} // namespace dtensor::detail

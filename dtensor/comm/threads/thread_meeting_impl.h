// SPDX-License-Identifier: BSD-3-Clause
// Helpers for ThreadBackend's collectives: running a function between arrival
// and departure, publishing tensors to peers, and computing a rank's result
// from the tensors of all members, while no member changes those tensors.
#pragma once

#include <c10/core/impl/VirtualGuardImpl.h>
#include <dtensor/comm/backend/call_impl.h>
#include <dtensor/comm/group/backend_call_impl.h>
#include <dtensor/comm/rank/rank_memory_impl.h>
#include <dtensor/comm/threads/thread_backend_impl.h>
#include <dtensor/format_text.h>
#include <dtensor/layout/shard_math.h>

#include <optional>

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

inline const Call& call_of(const Calls& calls, int64_t member) {
  return *calls[static_cast<size_t>(member)];
}

/// Returns all inputs, copied to `device` where needed.
std::vector<at::Tensor> inputs_on(const at::Device& device, const Calls& calls);

/// Returns true if all `sizes` equal `size`, or `sizes` is empty.
bool are_all(SizesRef sizes, int64_t size);

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

inline at::Tensor copy_to(const at::Device& device, const at::Tensor& tensor) {
  at::Tensor out =
      empty_result(tensor.sizes(), tensor.options().device(device));
  out.copy_(tensor);
  return out;
}

template <typename Body>
auto ThreadBackend::noting_place(std::string_view name, const Body& body) {
  try {
    return body();
  } catch (...) {
    hub_->set_place(
        members().ranks[static_cast<size_t>(rank())],
        detail::format_text("{} on \"{}\"", name, label()),
        std::current_exception());
    throw;
  }
}

template <typename Body>
auto ThreadBackend::meet(Call& call, const Body& body) {
  return noting_place(call.name(), [&] {
    finish_device_work(call);
    auto& notes = channel_->notes(rank());
    notes.drop_reported_expired();
    call.notes = notes.empty() ? nullptr : &notes;
    channel_->arrive(rank(), label(), call);
    struct Departure {
      ThreadBackend& backend;
      const Call& call;
      bool agreed = false;
      ~Departure() {
        finish_device_work(call);
        backend.channel_->sync(backend.rank());
        if (call.notes != nullptr) {
          auto& noted = backend.channel_->notes(backend.rank());
          agreed ? noted.clear() : noted.mark_reported();
        }
      }
    } departure{*this, call};
    check_agreement(channel_->calls(), members().ranks, label());
    departure.agreed = true;
    return body();
  });
}

// Peers read contiguous tensors, also on an accelerator.
template <typename Body>
auto ThreadBackend::meet_plain(Collective& c, const Body& body) {
  const PlainTensors guard;
  Call call(std::move(c));
  for (at::Tensor& input : call.inputs) {
    input = input.contiguous();
  }
  return meet(call, [&] { return body(call); });
}

template <typename Make, typename Combine>
auto ThreadBackend::try_fast_path(
    const Signature& signature,
    c10::ArrayRef<at::Tensor> given,
    const Make& make,
    const Combine& combine) -> std::optional<decltype(make())> {
  using Result = std::optional<decltype(make())>;
  auto& notes = channel_->notes(rank());
  notes.drop_reported_expired();
  if (signature.small == 0 || notes.must_be_compared()) {
    return std::nullopt;
  }
  return noting_place(to_string(signature.kind), [&]() -> Result {
    channel_->post(rank(), label(), signature, given);
    auto out = make(); // while other members arrive
    if (!channel_->fast_path_complete(rank(), label(), signature)) {
      return std::nullopt;
    }
    c10::SmallVector<const void*, 8> members;
    for (int64_t member = 0; member < size(); ++member) {
      members.push_back(channel_->posted(rank(), member));
    }
    combine(members, out);
    return out;
  });
}

template <typename Combine>
std::optional<at::Tensor> ThreadBackend::try_fast_path(
    const Signature& signature,
    c10::ArrayRef<at::Tensor> given,
    at::IntArrayRef sizes,
    const Combine& combine) {
  return try_fast_path(
      signature,
      given,
      [&] { return empty_small(sizes, signature.dtype); },
      combine);
}

} // namespace dtensor::detail

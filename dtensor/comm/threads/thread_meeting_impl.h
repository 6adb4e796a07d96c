// SPDX-License-Identifier: BSD-3-Clause
// Helpers for ThreadBackend's collectives: running a function between arrival
// and departure, and publishing tensors to peers.
#pragma once

#include <dtensor/comm/group/backend_call_impl.h>
#include <dtensor/comm/rank/rank_memory_impl.h>
#include <dtensor/comm/threads/combine_impl.h>
#include <dtensor/comm/threads/thread_backend_impl.h>
#include <dtensor/format_text.h>

#include <optional>

namespace dtensor::detail {

inline at::Tensor copy_to(const at::Device& device, const at::Tensor& tensor) {
  at::Tensor out =
      empty_result(tensor.sizes(), tensor.options().device(device));
  out.copy_(tensor);
  return out;
}

/// Returns copies of the inputs of all members, on `device`.
inline std::vector<at::Tensor> copies_of_inputs(
    const at::Device& device,
    const Calls& calls) {
  std::vector<at::Tensor> result;
  for (const Call* call : calls) {
    result.push_back(copy_to(device, call->input()));
  }
  finish_device_work(result.front());
  return result;
}

/// Runs `body`. Records `name` on `label` as the place of an error of `rank`.
template <typename Body>
auto placed(
    ThreadHub& hub,
    int64_t rank,
    std::string_view name,
    const std::string& label,
    const Body& body) {
  try {
    return body();
  } catch (...) {
    hub.set_place(
        rank,
        detail::format_text("{} on \"{}\"", name, label),
        std::current_exception());
    throw;
  }
}

template <typename Body>
auto ThreadBackend::noting_place(std::string_view name, const Body& body) {
  return placed(
      *hub_, members().ranks[static_cast<size_t>(rank())], name, label(), body);
}

template <typename Body>
auto ThreadBackend::meet(Call& call, const Body& body) {
  return noting_place(call.name(), [&] {
    finish_device_work(call);
    auto& assumed = channel_->assumed(rank());
    assumed.drop_reported_expired();
    call.assumed = assumed.empty() ? nullptr : &assumed;
    channel_->arrive(rank(), label(), call);
    struct Departure {
      ThreadBackend& backend;
      const Call& call;
      bool agreed = false;
      ~Departure() {
        finish_device_work(call);
        backend.channel_->sync(backend.rank());
        if (call.assumed != nullptr) {
          auto& noted = backend.channel_->assumed(backend.rank());
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
  auto& assumed = channel_->assumed(rank());
  assumed.drop_reported_expired();
  if (signature.small == 0 || !assumed.empty()) {
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

// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/transport_backend.h>

#include <dtensor/comm/backend/call_impl.h>
#include <dtensor/comm/backend/decompose_impl.h>
#include <dtensor/comm/backend/message_of_impl.h>
#include <dtensor/comm/backend/reduce_impl.h>
#include <dtensor/comm/group/shard_buffers_impl.h>
#include <dtensor/error.h>

#include <ATen/ops/empty_like.h>

namespace dtensor {
namespace {

// Combines the rows of `terms` in order.
at::Tensor combined(const at::Tensor& terms, ReduceOp op) {
  const auto rows = terms.unbind(0);
  at::Tensor result = at::empty_like(rows.front());
  detail::reduce_into(result, rows, op);
  return result;
}

} // namespace

InFlight TransportBackend::submit(Collective&& collective) {
  check(collective);
  const bool is_async = collective.is_async;
  InFlight result = collective.kind == CollectiveKind::kBarrier
      ? begin_named(std::move(collective))
      : detail::decompose(
            std::move(collective), *this, [this](Collective&& primitive) {
              return begin_named(std::move(primitive));
            });
  if (is_async) {
    result.progress_in_background();
  }
  return result;
}

InFlight TransportBackend::begin(const Collective& primitive) {
  switch (primitive.kind) {
    case CollectiveKind::kAllReduce:
      return begin_all_reduce(primitive);
    case CollectiveKind::kAllGather:
      return begin_all_gather(primitive);
    case CollectiveKind::kReduceScatter:
      return begin_reduce_scatter(primitive);
    case CollectiveKind::kAllToAll:
      return begin_all_to_all(primitive);
    case CollectiveKind::kBroadcast:
      return begin_broadcast(primitive);
    case CollectiveKind::kSend:
      return begin_send(primitive);
    case CollectiveKind::kRecv:
      return begin_recv(primitive);
    case CollectiveKind::kBarrier:
      return begin_barrier();
    default:
      TORCH_INTERNAL_ASSERT(false, "not a primitive: ", primitive.name());
  }
}

InFlight TransportBackend::begin_named(Collective&& primitive) {
  const std::string_view name = primitive.name();
  const auto explained = [this, name](const auto& body) {
    try {
      return body();
    } catch (const c10::ValueError&) {
      throw;
    } catch (const std::exception& error) {
      fail(name, error);
    }
  };
  return explained([&] { return begin(primitive); })
      .around([self = shared_from_this(), explained](
                  const InFlight::Wait& wait) { return explained(wait); });
}

void TransportBackend::fail(
    std::string_view name,
    const std::exception& error) {
  note_failure();
  DTENSOR_THROW(
      "[{}] {} failed on \"{}\" ({}): {}",
      name,
      carrier(),
      label(),
      detail::rank_list(members().ranks),
      detail::message_of(error));
}

InFlight TransportBackend::begin_reduce_scatter(const Collective& c) {
  const int64_t mine = c.sizes[static_cast<size_t>(rank())];
  return begin_all_to_all(
             {.kind = CollectiveKind::kAllToAll,
              .is_async = c.is_async,
              .inputs = c.inputs,
              .sizes = c.sizes,
              .received = Sizes(static_cast<size_t>(size()), mine)})
      .then([=, op = c.op, n = size()](const at::Tensor& terms) {
        return combined(terms.view({n, mine}), op);
      });
}

InFlight TransportBackend::begin_combined_all_reduce(
    const Collective& primitive) {
  constexpr int64_t kFewBytes = 4096;
  return primitive.is_async || primitive.input_bytes() <= kFewBytes
      ? begin_gathered_all_reduce(primitive)
      : begin_scattered_all_reduce(primitive);
}

InFlight TransportBackend::begin_scattered_all_reduce(
    const Collective& primitive) {
  const at::Tensor& input = primitive.input();
  const Sizes counts = detail::chunk_sizes(input.numel(), size());
  InFlight part = TransportBackend::begin_reduce_scatter(
      {.kind = CollectiveKind::kReduceScatter,
       .op = primitive.op,
       .inputs = input.view({-1}),
       .sizes = counts});
  return begin_all_gather({.kind = CollectiveKind::kAllGather,
                           .inputs = part.wait().tensor,
                           .sizes = counts})
      .then([shape = Sizes(input.sizes())](const at::Tensor& buffer) {
        return buffer.view(shape);
      });
}

InFlight TransportBackend::begin_gathered_all_reduce(
    const Collective& primitive) {
  const at::Tensor& input = primitive.input();
  return begin_all_gather(
             {.kind = CollectiveKind::kAllGather,
              .is_async = primitive.is_async,
              .inputs = input.view({-1}),
              .sizes = Sizes(static_cast<size_t>(size()), input.numel())})
      .then([shape = Sizes(input.sizes()), op = primitive.op, n = size()](
                const at::Tensor& terms) {
        return combined(terms.view({n, -1}), op).view(shape);
      });
}

} // namespace dtensor

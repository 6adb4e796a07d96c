// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/buffer_backend.h>

#include <dtensor/comm/backend/decompose_impl.h>

namespace dtensor {
namespace {

InFlight run(BufferBackend& backend, const Collective& c) {
  switch (c.kind) {
    case CollectiveKind::kAllReduce:
      return backend.all_reduce(c.input(), c.op);
    case CollectiveKind::kAllGather:
      return backend.all_gather(c.input(), c.sizes);
    case CollectiveKind::kReduceScatter:
      return backend.reduce_scatter(c.input(), c.sizes, c.op);
    case CollectiveKind::kAllToAll:
      return backend.all_to_all(c.input(), c.sizes, c.received);
    case CollectiveKind::kBroadcast:
      return backend.broadcast(c.input(), c.root);
    case CollectiveKind::kSend:
      backend.send(c.input(), c.root, c.tag);
      return CollectiveResult();
    case CollectiveKind::kRecv:
      return backend.recv(c.like, c.root, c.tag);
    default:
      TORCH_INTERNAL_ASSERT(false, "not a primitive: ", c.name());
  }
}

} // namespace

InFlight BufferBackend::submit(Collective&& collective) {
  return detail::decompose(
      std::move(collective), *this, [this](Collective&& primitive) {
        return run(*this, primitive);
      });
}

} // namespace dtensor

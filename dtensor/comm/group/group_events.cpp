// SPDX-License-Identifier: BSD-3-Clause
// The bytes of a collective, for its observers.
#include <dtensor/comm/group/group_checks_impl.h>

#include <c10/util/accumulate.h>
#include <dtensor/comm/observer.h>
#include <dtensor/layout/shard_math.h>

namespace dtensor::detail {
namespace {

int64_t bytes(const at::Tensor& tensor) {
  return static_cast<int64_t>(tensor.nbytes());
}

// Returns the bytes of the result of an all_gather. Estimates them from this
// rank's shard if the total size is unknown.
int64_t gathered_bytes(
    const Group& group,
    const Collective& c,
    const at::Tensor& gathered) {
  if (gathered.defined()) {
    return bytes(gathered);
  }
  if (c.gathered_size < 0) {
    return bytes(c.input()) * group.size();
  }
  Sizes sizes(c.input().sizes());
  sizes[static_cast<size_t>(c.dim)] = c.gathered_size;
  return c10::multiply_integers(sizes) * c.input().element_size();
}

// Returns the bytes of an all_to_all that stay on this rank.
int64_t kept_bytes(const Group& group, const Collective& c) {
  const auto me = static_cast<size_t>(group.rank());
  if (!c.received.empty()) {
    return c.sizes[me] * c.input().element_size();
  }
  if (c.shard_dim < 0) {
    return bytes(c.inputs[me]);
  }
  const int64_t size = c.input().size(c.shard_dim);
  return size == 0 ? 0
                   : bytes(c.input()) / size *
          chunk(size, group.size(), group.rank()).size();
}

// Returns the bytes that this rank sends.
double sent_bytes(
    const Group& group,
    const Collective& c,
    const at::Tensor& gathered) {
  const auto in_ring = [&](int64_t buffer) {
    return wire_bytes(c.kind, group.size(), static_cast<double>(buffer));
  };
  switch (c.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kScatter:
      return in_ring(c.input_bytes());
    case CollectiveKind::kAllGather:
      return in_ring(gathered_bytes(group, c, gathered));
    case CollectiveKind::kAllToAll:
      return static_cast<double>(c.input_bytes() - kept_bytes(group, c));
    case CollectiveKind::kGather:
      return group.rank() == c.root ? 0 : static_cast<double>(c.input_bytes());
    default:
      return static_cast<double>(c.input_bytes());
  }
}

} // namespace

void observe(
    const Group& group,
    const Collective& collective,
    const at::Tensor& gathered) {
  if (comm_observed()) {
    notify_comm_observers(
        {.kind = collective.kind,
         .payload_bytes = collective.input_bytes(),
         .wire_bytes = sent_bytes(group, collective, gathered),
         .group_size = group.size(),
         .label = group.label()});
  }
}

} // namespace dtensor::detail

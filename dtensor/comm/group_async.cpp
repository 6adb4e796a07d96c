// SPDX-License-Identifier: BSD-3-Clause
// Asynchronous collectives: the code shared by all groups.
#include <dtensor/comm/group.h>
#include <dtensor/comm/group/backend_call_impl.h>
#include <dtensor/comm/group/group_checks_impl.h>
#include <dtensor/error.h>
#include <dtensor/layout/shard_math.h>
#include <dtensor/layout/text.h>

#include <c10/util/accumulate.h>

namespace dtensor {

using namespace detail;

namespace {

void check_out(
    std::string_view where,
    const at::Tensor& out,
    at::IntArrayRef sizes,
    const at::Tensor& input) {
  DTENSOR_CHECK_VALUE(
      !out.defined() ||
          (out.sizes() == sizes && out.is_contiguous() &&
           out.scalar_type() == input.scalar_type() &&
           out.device() == input.device()),
      "[{}] `out`, {}{}{}, cannot take the result, {}{}. Pass a contiguous "
      "tensor of that shape and dtype.",
      where,
      short_name(out.scalar_type()),
      out.sizes(),
      out.is_contiguous() ? "" : " (not contiguous)",
      short_name(input.scalar_type()),
      sizes);
}

// Checks that the counts match `input`, and that this rank's own counts are
// equal.
void check_counts(
    const Group& group,
    const at::Tensor& input,
    SizesRef sent,
    SizesRef received) {
  const auto ranks = static_cast<size_t>(group.size());
  const auto me = static_cast<size_t>(group.rank());
  check_sizes("all_to_all_async", group.label(), sent);
  check_sizes("all_to_all_async", group.label(), received);
  DTENSOR_CHECK_VALUE(
      sent.size() == ranks && received.size() == ranks &&
          c10::sum_integers(sent) == input.numel() && sent[me] == received[me],
      "[all_to_all_async] the counts do not fit {}{} on \"{}\", which has {}: "
      "sent {}, received {}. Pass one count per rank, adding up to the number "
      "of elements, and the same count for this rank itself in both.",
      short_name(input.scalar_type()),
      input.sizes(),
      group.label(),
      detail::pluralize(ranks, "rank"),
      sent,
      received);
  DTENSOR_CHECK_VALUE(
      input.is_contiguous(),
      "[all_to_all_async] `input`, {}{}, is not contiguous. Pass a contiguous "
      "tensor.",
      short_name(input.scalar_type()),
      input.sizes());
}

// Returns `result` as a completed Pending, copied to `out` if `out` is defined.
PendingPtr ready_at(const at::Tensor& result, const at::Tensor& out) {
  const PlainTensors guard;
  return ready(out.defined() ? out.copy_(result) : result);
}

} // namespace

bool Group::progresses_in_background(c10::DeviceType device) const {
  return backend_ != nullptr && backend_->progresses_in_background(device);
}

PendingPtr Group::start(Collective&& collective) {
  collective.is_async = true;
  observe(*this, collective);
  const BackendCall call(*backend_, collective);
  return pending(backend_->submit(std::move(collective)));
}

PendingPtr
Group::all_reduce_async(at::Tensor input, ReduceOp op, at::Tensor out) {
  check_owned_by_this_rank("all_reduce_async");
  check_defined("all_reduce_async", input);
  check_out("all_reduce_async", out, input.sizes(), input);
  if (size() == 1) {
    return ready_at(input, out);
  }
  check_reducible("all_reduce_async", input.scalar_type(), op);
  return start(
      {.kind = CollectiveKind::kAllReduce,
       .op = op,
       .inputs = std::move(input),
       .out = std::move(out)});
}

PendingPtr
Group::all_gather_async(at::Tensor input, int64_t dim, int64_t gathered_size) {
  check_owned_by_this_rank("all_gather_async");
  const int64_t wrapped = wrap_dim("all_gather_async", input, dim);
  return gather_async(std::move(input), wrapped, gathered_size, {});
}

PendingPtr
Group::all_gather_async(at::Tensor input, int64_t dim, SizesRef sizes) {
  check_owned_by_this_rank("all_gather_async");
  const int64_t wrapped = wrap_dim("all_gather_async", input, dim);
  check_shard_size("all_gather_async", *this, input, wrapped, sizes);
  const int64_t total = sizes.empty() ? -1 : c10::sum_integers(sizes);
  return gather_async(std::move(input), wrapped, total, sizes);
}

PendingPtr Group::gather_async(
    at::Tensor input,
    int64_t dim,
    int64_t total,
    SizesRef parts) {
  if (size() == 1) {
    return ready(input);
  }
  return start(
      {.kind = CollectiveKind::kAllGather,
       .dim = dim,
       .gathered_size = total,
       .inputs = std::move(input),
       .sizes = Sizes(parts)});
}

PendingPtr Group::reduce_scatter_async(
    at::Tensor input,
    int64_t dim,
    ReduceOp op,
    at::Tensor out,
    SizesRef sizes) {
  check_owned_by_this_rank("reduce_scatter_async");
  constexpr std::string_view kWhere = "reduce_scatter_async";
  const int64_t wrapped = wrap_dim(kWhere, input, dim);
  check_total(kWhere, *this, input, wrapped, sizes);
  Sizes part(input.sizes());
  auto& length = part[static_cast<size_t>(wrapped)];
  length = sizes.empty() ? chunk(length, size(), rank()).size()
                         : sizes[static_cast<size_t>(rank())];
  check_out(kWhere, out, part, input);
  if (size() == 1) {
    return ready_at(input, out);
  }
  check_reducible(kWhere, input.scalar_type(), op);
  return start(
      {.kind = CollectiveKind::kReduceScatter,
       .op = op,
       .dim = wrapped,
       .inputs = std::move(input),
       .sizes = Sizes(sizes),
       .out = std::move(out)});
}

PendingPtr Group::shard_dim_alltoall_async(
    at::Tensor input,
    int64_t gather_dim,
    int64_t shard_dim,
    SizesRef sizes) {
  check_owned_by_this_rank("shard_dim_alltoall_async");
  if (size() == 1) {
    return ready(input);
  }
  const auto [gathered, sharded] = two_dims(input, gather_dim, shard_dim);
  check_shard_size("shard_dim_alltoall_async", *this, input, gathered, sizes);
  return start(
      {.kind = CollectiveKind::kAllToAll,
       .dim = gathered,
       .shard_dim = sharded,
       .inputs = std::move(input),
       .sizes = Sizes(sizes)});
}

PendingPtr
Group::all_to_all_async(at::Tensor input, SizesRef sent, SizesRef received) {
  check_owned_by_this_rank("all_to_all_async");
  check_defined("all_to_all_async", input);
  check_counts(*this, input, sent, received);
  at::Tensor flat = input.detach().view({-1});
  input.reset();
  if (size() == 1) {
    return ready(flat);
  }
  return start(
      {.kind = CollectiveKind::kAllToAll,
       .inputs = std::move(flat),
       .sizes = Sizes(sent),
       .received = Sizes(received)});
}

} // namespace dtensor

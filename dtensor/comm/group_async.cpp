// SPDX-License-Identifier: BSD-3-Clause
// Asynchronous collectives: the code shared by all groups.
#include <dtensor/comm/group.h>
#include <dtensor/comm/group_backend.h>
#include <dtensor/comm/group_checks_impl.h>
#include <dtensor/error.h>
#include <dtensor/layout/shard_math.h>
#include <dtensor/layout/text.h>

#include <c10/util/accumulate.h>

namespace dtensor {

using namespace detail;

namespace {

class Ready final : public Pending {
 public:
  explicit Ready(at::Tensor result) : result_(std::move(result)) {}
  at::Tensor wait() override {
    return result_;
  }

 private:
  at::Tensor result_;
};

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

std::string_view profiler_name(const AsyncCollective& collective) {
  switch (collective.kind) {
    case CollectiveKind::kAllReduce:
      return "dtensor::all_reduce_async";
    case CollectiveKind::kAllGather:
      return "dtensor::all_gather_async";
    case CollectiveKind::kReduceScatter:
      return "dtensor::reduce_scatter_async";
    default:
      return collective.received.empty() ? "dtensor::shard_dim_alltoall_async"
                                         : "dtensor::all_to_all_async";
  }
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
  DTENSOR_CHECK_VALUE(
      sent.size() == ranks && received.size() == ranks &&
          c10::sum_integers(sent) == input.numel() && sent[me] == received[me],
      "[all_to_all_async] the counts do not fit {}{} on \"{}\", which has {} "
      "ranks: sent {}, received {}. Pass one count per rank, adding up to the "
      "number of elements, and the same count for this rank itself in both.",
      short_name(input.scalar_type()),
      input.sizes(),
      group.label(),
      ranks,
      sent,
      received);
  DTENSOR_CHECK_VALUE(
      input.is_contiguous(),
      "[all_to_all_async] `input`, {}{}, is not contiguous. Pass a contiguous "
      "tensor.",
      short_name(input.scalar_type()),
      input.sizes());
}

} // namespace

PendingPtr ready(at::Tensor result) {
  return std::make_shared<Ready>(std::move(result));
}

PendingPtr detail::ready_at(const at::Tensor& result, const at::Tensor& out) {
  return ready(out.defined() ? out.copy_(result) : result);
}

bool Group::progresses_in_background(c10::DeviceType device) const {
  return backend_ != nullptr && backend_->progresses_in_background(device);
}

// Moves the collective on: a backend reads an input in place if it is the only
// owner.
PendingPtr Group::enter(AsyncCollective collective) {
  const PreparedInput hand(*backend_, profiler_name(collective));
  if (backend_->needs().plain) {
    collective.input = *hand(collective.input);
  }
  return backend_->start(std::move(collective));
}

PendingPtr
Group::all_reduce_async(at::Tensor input, ReduceOp op, at::Tensor out) {
  check_mine("all_reduce_async");
  check_defined("all_reduce_async", input);
  check_out("all_reduce_async", out, input.sizes(), input);
  if (size() == 1) {
    return ready_at(input, out);
  }
  check_reducible("all_reduce_async", input.scalar_type(), op);
  observe_ring(*this, CollectiveKind::kAllReduce, bytes(input), bytes(input));
  return enter(
      {.kind = CollectiveKind::kAllReduce,
       .input = std::move(input),
       .op = op,
       .out = std::move(out)});
}

PendingPtr
Group::all_gather_async(at::Tensor input, int64_t dim, int64_t gathered_size) {
  check_mine("all_gather_async");
  const int64_t wrapped = wrap_dim("all_gather_async", input, dim);
  return gather_async(std::move(input), wrapped, gathered_size, {});
}

PendingPtr
Group::all_gather_async(at::Tensor input, int64_t dim, SizesRef sizes) {
  check_mine("all_gather_async");
  const int64_t wrapped = wrap_dim("all_gather_async", input, dim);
  check_part("all_gather_async", *this, input, wrapped, sizes);
  return gather_async(
      std::move(input), wrapped, c10::sum_integers(sizes), sizes);
}

PendingPtr Group::gather_async(
    at::Tensor input,
    int64_t dim,
    int64_t gathered_size,
    SizesRef parts) {
  if (size() == 1) {
    return ready(input);
  }
  Sizes sizes(input.sizes());
  sizes[static_cast<size_t>(dim)] = gathered_size;
  observe_ring(
      *this,
      CollectiveKind::kAllGather,
      bytes(input),
      c10::multiply_integers(sizes) * input.element_size());
  return enter(
      {.kind = CollectiveKind::kAllGather,
       .input = std::move(input),
       .dim = dim,
       .sizes = Sizes(parts),
       .gathered_size = gathered_size});
}

PendingPtr Group::reduce_scatter_async(
    at::Tensor input,
    int64_t dim,
    ReduceOp op,
    at::Tensor out,
    SizesRef sizes) {
  check_mine("reduce_scatter_async");
  constexpr std::string_view kWhere = "reduce_scatter_async";
  const int64_t wrapped = wrap_dim(kWhere, input, dim);
  check_total(kWhere, *this, input, wrapped, sizes);
  Sizes part(input.sizes());
  auto& cut = part[static_cast<size_t>(wrapped)];
  cut = sizes.empty() ? chunk(cut, size(), rank()).size()
                      : sizes[static_cast<size_t>(rank())];
  check_out(kWhere, out, part, input);
  if (size() == 1) {
    return ready_at(input, out);
  }
  check_reducible(kWhere, input.scalar_type(), op);
  observe_ring(
      *this, CollectiveKind::kReduceScatter, bytes(input), bytes(input));
  return enter(
      {.kind = CollectiveKind::kReduceScatter,
       .input = std::move(input),
       .op = op,
       .dim = wrapped,
       .sizes = Sizes(sizes),
       .out = std::move(out)});
}

PendingPtr Group::shard_dim_alltoall_async(
    at::Tensor input,
    int64_t gather_dim,
    int64_t shard_dim,
    SizesRef sizes) {
  check_mine("shard_dim_alltoall_async");
  if (size() == 1) {
    return ready(input);
  }
  const auto [gathered, cut] = two_dims(input, gather_dim, shard_dim);
  check_part("shard_dim_alltoall_async", *this, input, gathered, sizes);
  observe_shard_dim_alltoall(*this, input, cut);
  return enter(
      {.kind = CollectiveKind::kAllToAll,
       .input = std::move(input),
       .dim = gathered,
       .shard_dim = cut,
       .sizes = Sizes(sizes)});
}

PendingPtr
Group::all_to_all_async(at::Tensor input, SizesRef sent, SizesRef received) {
  check_mine("all_to_all_async");
  check_defined("all_to_all_async", input);
  check_counts(*this, input, sent, received);
  const at::Tensor flat = input.detach().view({-1});
  input.reset();
  if (size() == 1) {
    return ready(flat);
  }
  const int64_t kept = sent[static_cast<size_t>(rank())] * flat.element_size();
  observe(
      *this,
      CollectiveKind::kAllToAll,
      bytes(flat),
      static_cast<double>(bytes(flat) - kept));
  return enter(
      {.kind = CollectiveKind::kAllToAll,
       .input = flat,
       .sizes = Sizes(sent),
       .received = Sizes(received)});
}

} // namespace dtensor

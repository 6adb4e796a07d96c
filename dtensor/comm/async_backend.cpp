// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/async_backend_impl.h>

#include <dtensor/comm/call_impl.h>
#include <dtensor/comm/group_checks_impl.h>
#include <dtensor/comm/message_of_impl.h>
#include <dtensor/comm/reduce_impl.h>
#include <dtensor/comm/shard_buffers_impl.h>
#include <dtensor/error.h>

#include <ATen/ops/empty_like.h>
#include <c10/util/accumulate.h>

namespace dtensor::detail {
namespace {

// Combines the rows of `terms` in order.
at::Tensor combined(const at::Tensor& terms, ReduceOp op) {
  const auto rows = terms.unbind(0);
  at::Tensor result = at::empty_like(rows.front());
  reduce_into(result, rows, op);
  return result;
}

// Finishes the collective in wait().
class AsyncPending final : public Pending {
 public:
  AsyncPending(
      std::shared_ptr<AsyncBackend> backend,
      std::string_view name,
      InFlight begun,
      at::Tensor out)
      : backend_(std::move(backend)),
        name_(name),
        begun_(std::move(begun)),
        out_(std::move(out)) {}

  at::Tensor wait() override {
    if (!result_.defined()) {
      result_ = backend_->end(name_, begun_);
      if (out_.defined()) {
        result_ = out_.copy_(result_);
      }
      begun_ = {};
    }
    return result_;
  }

 private:
  std::shared_ptr<AsyncBackend> backend_;
  std::string_view name_;
  InFlight begun_;
  at::Tensor out_;
  at::Tensor result_;
};

} // namespace

at::Tensor AsyncBackend::end(std::string_view name, const InFlight& begun) {
  try {
    if (begun.transfer != nullptr) {
      begun.transfer->wait();
    }
  } catch (const std::exception& error) {
    fail(name, error);
  }
  return begun.finish();
}

void AsyncBackend::fail(std::string_view name, const std::exception& error) {
  note_failure();
  DTENSOR_THROW(
      "[{}] {} failed on \"{}\" ({}): {}",
      name,
      carrier(),
      label(),
      rank_list(members().ranks),
      message_of(error));
}

at::Tensor AsyncBackend::all_reduce(const at::Tensor& input, ReduceOp op) {
  constexpr const char* kName = "all_reduce";
  return end(
      kName, begun(kName, input, [&] { return begin_all_reduce(input, op); }));
}

at::Tensor AsyncBackend::all_reduce_in_place(
    const at::Tensor& tensor,
    ReduceOp op) {
  constexpr const char* kName = "all_reduce";
  return end(kName, begun(kName, tensor, [&] {
               return begin_all_reduce_in_place(tensor, op);
             }));
}

at::Tensor AsyncBackend::all_gather(const at::Tensor& input, SizesRef counts) {
  constexpr const char* kName = "all_gather";
  return end(kName, begun(kName, input, [&] {
               return begin_all_gather(input, counts);
             }));
}

at::Tensor AsyncBackend::reduce_scatter(
    const at::Tensor& input,
    SizesRef counts,
    ReduceOp op) {
  constexpr const char* kName = "reduce_scatter";
  return end(kName, begun(kName, input, [&] {
               return begin_reduce_scatter(input, counts, op);
             }));
}

at::Tensor AsyncBackend::all_to_all(
    const at::Tensor& input,
    SizesRef sent,
    SizesRef received) {
  constexpr const char* kName = "all_to_all";
  return end(kName, begun(kName, input, [&] {
               return begin_all_to_all(input, sent, received);
             }));
}

at::Tensor AsyncBackend::broadcast(const at::Tensor& input, int64_t root) {
  constexpr const char* kName = "broadcast";
  return end(
      kName, begun(kName, input, [&] { return begin_broadcast(input, root); }));
}

void AsyncBackend::send(const at::Tensor& input, int64_t to, int64_t tag) {
  constexpr const char* kName = "send";
  end(kName, begun(kName, input, [&] { return begin_send(input, to, tag); }));
}

at::Tensor
AsyncBackend::recv(const at::Tensor& like, int64_t from, int64_t tag) {
  constexpr const char* kName = "recv";
  return end(
      kName, begun(kName, like, [&] { return begin_recv(like, from, tag); }));
}

PendingPtr AsyncBackend::start(AsyncCollective collective) {
  const std::string_view name = to_string(collective.kind);
  auto under_way =
      begun(name, collective.input, [&] { return begin(collective); });
  if (under_way.transfer != nullptr) {
    under_way.transfer->progress_in_background();
  }
  return std::make_shared<AsyncPending>(
      shared_from_this(), name, std::move(under_way), collective.out);
}

InFlight AsyncBackend::begin_reduce_scatter(
    const at::Tensor& input,
    SizesRef counts,
    ReduceOp op) {
  const int64_t mine = counts[static_cast<size_t>(rank())];
  const Sizes received(static_cast<size_t>(size()), mine);
  const InFlight parts = begin_all_to_all(input, counts, received);
  return {parts.transfer, [=, n = size()] {
            return combined(parts.finish().view({n, mine}), op);
          }};
}

InFlight AsyncBackend::begin_gathered_all_reduce(
    const at::Tensor& input,
    ReduceOp op) {
  const Sizes counts(static_cast<size_t>(size()), input.numel());
  const InFlight terms = begin_all_gather(input.view({-1}), counts);
  return {terms.transfer, [=, n = size()] {
            return combined(terms.finish().view({n, input.numel()}), op)
                .view(input.sizes());
          }};
}

InFlight AsyncBackend::begin(const AsyncCollective& collective) {
  const auto& input = collective.input;
  switch (collective.kind) {
    case CollectiveKind::kAllReduce:
      return is_sole_owner(input)
          ? begin_all_reduce_in_place(input, collective.op)
          : begin_all_reduce(input, collective.op);
    case CollectiveKind::kAllGather:
      return begin_gather_along(collective);
    case CollectiveKind::kReduceScatter:
      return begin_reduce_scatter_along(collective);
    case CollectiveKind::kAllToAll:
      return collective.received.empty()
          ? begin_shard_dim_alltoall(collective)
          : begin_all_to_all(input, collective.sizes, collective.received);
    default:
      TORCH_INTERNAL_ASSERT(
          false, "not asynchronous: ", to_string(collective.kind));
  }
}

InFlight AsyncBackend::begin_gather_along(const AsyncCollective& collective) {
  const auto& [kind, input, op, dim, cut_dim, given, received, total, out] =
      collective;
  const Sizes sizes = given.empty() ? exchange_sizes(input.size(dim)) : given;
  const int64_t sum = c10::sum_integers(sizes);
  if (sum != total) {
    throw_wrong_total("all_gather", label(), dim, sum, total);
  }
  const auto shapes = shapes_along(input.sizes(), dim, sizes);
  // The input is read while the program goes on.
  const at::Tensor mine = is_sole_owner(input) ? input : input.clone();
  const auto gathered = begin_all_gather(mine.view({-1}), counts_of(shapes));
  return {gathered.transfer, [gathered, shapes, dim = dim] {
            return concat_from_buffer(gathered.finish(), shapes, dim);
          }};
}

InFlight AsyncBackend::begin_reduce_scatter_along(
    const AsyncCollective& collective) {
  const auto& [kind, input, op, dim, cut_dim, given, received, total, out] =
      collective;
  const Sizes sizes =
      given.empty() ? chunk_sizes(input.size(dim), size()) : given;
  const auto shapes = shapes_along(input.sizes(), dim, sizes);
  const bool may_change = !is_sole_owner(input);
  at::Tensor buffer = split_into_buffer(input, dim, sizes);
  if (may_change && buffer.is_alias_of(input)) {
    buffer = buffer.clone();
  }
  const auto reduced = begin_reduce_scatter(buffer, counts_of(shapes), op);
  return {
      reduced.transfer, [reduced, mine = shapes[static_cast<size_t>(rank())]] {
        return reduced.finish().view(mine);
      }};
}

InFlight AsyncBackend::begin_shard_dim_alltoall(
    const AsyncCollective& collective) {
  const auto& [kind, input, op, dim, cut_dim, given, received, total, out] =
      collective;
  const Sizes known = given.empty() ? exchange_sizes(input.size(dim)) : given;
  const Sizes cut = chunk_sizes(input.size(cut_dim), size());
  const auto sent = split(input, cut_dim, cut);
  const auto shapes = shapes_along(
      resized(input.sizes(), cut_dim, cut[static_cast<size_t>(rank())]),
      dim,
      known);
  const auto exchanged = begin_all_to_all(
      in_one_buffer(sent), counts_of(shapes_of(sent)), counts_of(shapes));
  return {exchanged.transfer, [exchanged, shapes, dim = dim] {
            return concat_from_buffer(exchanged.finish(), shapes, dim);
          }};
}

} // namespace dtensor::detail

// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/backend_decorator_impl.h>

#include <dtensor/comm/group_checks_impl.h>

namespace dtensor::detail {
namespace {

// Describes the call without holding the input's memory: a backend reads an
// input in place only if it is the sole owner.
Call async_call(const AsyncCollective& collective) {
  if (!collective.received.empty()) {
    Call call = all_to_all_call(
        collective.input.to(at::kMeta), collective.sizes, collective.received);
    call.device = collective.input.device().type();
    return call;
  }
  const bool cuts = collective.kind == CollectiveKind::kAllToAll;
  const bool gathers = collective.kind == CollectiveKind::kAllGather;
  return {
      .kind = collective.kind,
      .inputs = {collective.input.to(at::kMeta)},
      .op = collective.op,
      .dim = collective.dim,
      .shard_dim = cuts ? collective.shard_dim : -1,
      .sizes = collective.sizes,
      .gathered_size = gathers ? collective.gathered_size : -1,
      .device = collective.input.device().type()};
}

} // namespace

template <typename Body>
auto BackendDecorator::around(
    const Entered& entered,
    MakeCall call,
    const Body& body) {
  enter(entered, call);
  struct Leaving {
    BackendDecorator& decorator;
    const Entered& entered;
    ~Leaving() {
      decorator.leave(entered);
    }
  } const leaving{*this, entered};
  try {
    return body();
  } catch (...) {
    failed(entered);
    throw;
  }
}

void BackendDecorator::failed(const Entered& /*entered*/) {}

PendingPtr BackendDecorator::started(
    const Entered& /*entered*/,
    PendingPtr pending) {
  return pending;
}

at::Tensor BackendDecorator::all_reduce(const at::Tensor& input, ReduceOp op) {
  return around(
      {"all_reduce", bytes(input)},
      [&] {
        return Call{
            .kind = CollectiveKind::kAllReduce, .inputs = {input}, .op = op};
      },
      [&] { return inner_->all_reduce(input, op); });
}

at::Tensor BackendDecorator::all_gather(
    const at::Tensor& input,
    SizesRef counts) {
  return around(
      {"all_gather", bytes(input)},
      [&] {
        return Call{
            .kind = CollectiveKind::kAllGather,
            .inputs = {input},
            .sizes = Sizes(counts)};
      },
      [&] { return inner_->all_gather(input, counts); });
}

at::Tensor BackendDecorator::gather_along(
    const at::Tensor& input,
    int64_t dim,
    SizesRef sizes) {
  return around(
      {"all_gather", bytes(input)},
      [&] {
        return Call{
            .kind = CollectiveKind::kAllGather,
            .inputs = {input},
            .dim = dim,
            .sizes = Sizes(sizes)};
      },
      [&] { return inner_->gather_along(input, dim, sizes); });
}

at::Tensor BackendDecorator::reduce_scatter(
    const at::Tensor& input,
    SizesRef counts,
    ReduceOp op) {
  return around(
      {"reduce_scatter", bytes(input)},
      [&] {
        return Call{
            .kind = CollectiveKind::kReduceScatter,
            .inputs = {input},
            .op = op,
            .sizes = Sizes(counts)};
      },
      [&] { return inner_->reduce_scatter(input, counts, op); });
}

at::Tensor BackendDecorator::reduce_scatter_along(
    const at::Tensor& input,
    int64_t dim,
    SizesRef sizes,
    ReduceOp op) {
  return around(
      {"reduce_scatter", bytes(input)},
      [&] {
        return Call{
            .kind = CollectiveKind::kReduceScatter,
            .inputs = {input},
            .op = op,
            .dim = dim,
            .sizes = Sizes(sizes)};
      },
      [&] { return inner_->reduce_scatter_along(input, dim, sizes, op); });
}

at::Tensor BackendDecorator::all_to_all(
    const at::Tensor& input,
    SizesRef sent,
    SizesRef received) {
  return around(
      {"all_to_all", bytes(input)},
      [&] { return all_to_all_call(input, sent, received); },
      [&] { return inner_->all_to_all(input, sent, received); });
}

GroupBackend::Tensors BackendDecorator::exchange_parts(
    const Tensors& inputs,
    Shapes shapes) {
  return around(
      {"all_to_all", bytes(inputs)},
      [&] {
        return Call{
            .kind = CollectiveKind::kAllToAll,
            .inputs = inputs,
            .shapes = shapes.vec()};
      },
      [&] { return inner_->exchange_parts(inputs, shapes); });
}

at::Tensor BackendDecorator::shard_dim_alltoall(
    const at::Tensor& input,
    int64_t gather_dim,
    int64_t shard_dim,
    SizesRef sizes) {
  return around(
      {"shard_dim_alltoall", bytes(input)},
      [&] {
        return Call{
            .kind = CollectiveKind::kAllToAll,
            .inputs = {input},
            .dim = gather_dim,
            .shard_dim = shard_dim,
            .sizes = Sizes(sizes)};
      },
      [&] {
        return inner_->shard_dim_alltoall(input, gather_dim, shard_dim, sizes);
      });
}

at::Tensor BackendDecorator::broadcast(const at::Tensor& input, int64_t root) {
  return around(
      {"broadcast", bytes(input)},
      [&] {
        return Call{
            .kind = CollectiveKind::kBroadcast,
            .inputs = {input},
            .root = root};
      },
      [&] { return inner_->broadcast(input, root); });
}

at::Tensor BackendDecorator::scatter(
    const Tensors& inputs,
    const at::Tensor& like,
    int64_t root) {
  const bool gives = rank() == root;
  return around(
      {"scatter", gives ? bytes(inputs) : 0},
      [&] {
        return Call{
            .kind = CollectiveKind::kScatter,
            .inputs = gives ? inputs : Tensors(),
            .like = like,
            .root = root};
      },
      [&] { return inner_->scatter(inputs, like, root); });
}

GroupBackend::Tensors
BackendDecorator::gather(const at::Tensor& input, Shapes shapes, int64_t root) {
  return around(
      {"gather", bytes(input)},
      [&] {
        return Call{
            .kind = CollectiveKind::kGather, .inputs = {input}, .root = root};
      },
      [&] { return inner_->gather(input, shapes, root); });
}

void BackendDecorator::send(const at::Tensor& input, int64_t to, int64_t tag) {
  around(
      {"send", bytes(input)},
      [&] {
        return Call{
            .kind = CollectiveKind::kSend, .inputs = {input}, .root = to};
      },
      [&] { inner_->send(input, to, tag); });
}

at::Tensor
BackendDecorator::recv(const at::Tensor& like, int64_t from, int64_t tag) {
  return around(
      {"recv", 0},
      [&] {
        return Call{.kind = CollectiveKind::kRecv, .like = like, .root = from};
      },
      [&] { return inner_->recv(like, from, tag); });
}

void BackendDecorator::barrier() {
  around(
      {"barrier", 0},
      [&] { return Call{.kind = CollectiveKind::kBarrier}; },
      [&] { inner_->barrier(); });
}

std::vector<std::string> BackendDecorator::all_gather_strings(
    const std::string& mine) {
  return around(
      {"all_gather_strings", static_cast<int64_t>(mine.size())},
      [&] { return Call(); },
      [&] { return inner_->all_gather_strings(mine); });
}

PendingPtr BackendDecorator::start(AsyncCollective collective) {
  const Entered entered{to_string(collective.kind), bytes(collective.input)};
  return around(
      entered,
      [&] { return async_call(collective); },
      [&] { return started(entered, inner_->start(std::move(collective))); });
}

void BackendDecorator::assume(const Spec& spec) {
  inner_->assume(spec);
}

} // namespace dtensor::detail

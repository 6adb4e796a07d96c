// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/backend_decorator_impl.h>

namespace dtensor::detail {

template <typename Body>
auto BackendDecorator::around(Call call, const Body& body) {
  enter(call);
  struct Leaving {
    BackendDecorator& decorator;
    const Call& call;
    ~Leaving() {
      decorator.leave(call);
    }
  } const leaving{*this, call};
  return body();
}

at::Tensor BackendDecorator::all_reduce(const at::Tensor& input, ReduceOp op) {
  return around(
      {.kind = CollectiveKind::kAllReduce, .inputs = {input}, .op = op},
      [&] { return inner_->all_reduce(input, op); });
}

at::Tensor BackendDecorator::all_gather(
    const at::Tensor& input,
    SizesRef counts) {
  return around(
      {.kind = CollectiveKind::kAllGather,
       .inputs = {input},
       .sizes = Sizes(counts)},
      [&] { return inner_->all_gather(input, counts); });
}

at::Tensor BackendDecorator::gather_along(
    const at::Tensor& input,
    int64_t dim,
    SizesRef sizes) {
  return around(
      {.kind = CollectiveKind::kAllGather,
       .inputs = {input},
       .dim = dim,
       .sizes = Sizes(sizes)},
      [&] { return inner_->gather_along(input, dim, sizes); });
}

at::Tensor BackendDecorator::reduce_scatter(
    const at::Tensor& input,
    SizesRef counts,
    ReduceOp op) {
  return around(
      {.kind = CollectiveKind::kReduceScatter,
       .inputs = {input},
       .op = op,
       .sizes = Sizes(counts)},
      [&] { return inner_->reduce_scatter(input, counts, op); });
}

at::Tensor BackendDecorator::reduce_scatter_along(
    const at::Tensor& input,
    int64_t dim,
    SizesRef sizes,
    ReduceOp op) {
  return around(
      {.kind = CollectiveKind::kReduceScatter,
       .inputs = {input},
       .op = op,
       .dim = dim,
       .sizes = Sizes(sizes)},
      [&] { return inner_->reduce_scatter_along(input, dim, sizes, op); });
}

at::Tensor BackendDecorator::all_to_all(
    const at::Tensor& input,
    SizesRef sent,
    SizesRef received) {
  Call call{.kind = CollectiveKind::kAllToAll};
  int64_t begin = 0;
  for (size_t member = 0; member < sent.size(); ++member) {
    call.inputs.push_back(input.narrow(0, begin, sent[member]));
    call.shapes.push_back({received[member]});
    begin += sent[member];
  }
  return around(std::move(call), [&] {
    return inner_->all_to_all(input, sent, received);
  });
}

GroupBackend::Tensors BackendDecorator::exchange_parts(
    const Tensors& inputs,
    Shapes shapes) {
  return around(
      {.kind = CollectiveKind::kAllToAll,
       .inputs = inputs,
       .shapes = shapes.vec()},
      [&] { return inner_->exchange_parts(inputs, shapes); });
}

at::Tensor BackendDecorator::shard_dim_alltoall(
    const at::Tensor& input,
    int64_t gather_dim,
    int64_t shard_dim,
    SizesRef sizes) {
  return around(
      {.kind = CollectiveKind::kAllToAll,
       .inputs = {input},
       .dim = gather_dim,
       .shard_dim = shard_dim,
       .sizes = Sizes(sizes)},
      [&] {
        return inner_->shard_dim_alltoall(input, gather_dim, shard_dim, sizes);
      });
}

at::Tensor BackendDecorator::broadcast(const at::Tensor& input, int64_t root) {
  return around(
      {.kind = CollectiveKind::kBroadcast, .inputs = {input}, .root = root},
      [&] { return inner_->broadcast(input, root); });
}

at::Tensor BackendDecorator::scatter(
    const Tensors& inputs,
    const at::Tensor& like,
    int64_t root) {
  return around(
      {.kind = CollectiveKind::kScatter,
       .inputs = rank() == root ? inputs : Tensors(),
       .like = like,
       .root = root},
      [&] { return inner_->scatter(inputs, like, root); });
}

GroupBackend::Tensors
BackendDecorator::gather(const at::Tensor& input, Shapes shapes, int64_t root) {
  return around(
      {.kind = CollectiveKind::kGather, .inputs = {input}, .root = root},
      [&] { return inner_->gather(input, shapes, root); });
}

void BackendDecorator::send(const at::Tensor& input, int64_t to, int64_t tag) {
  around({.kind = CollectiveKind::kSend, .inputs = {input}, .root = to}, [&] {
    inner_->send(input, to, tag);
  });
}

at::Tensor
BackendDecorator::recv(const at::Tensor& like, int64_t from, int64_t tag) {
  return around(
      {.kind = CollectiveKind::kRecv, .like = like, .root = from},
      [&] { return inner_->recv(like, from, tag); });
}

void BackendDecorator::barrier() {
  around({.kind = CollectiveKind::kBarrier}, [&] { inner_->barrier(); });
}

std::vector<std::string> BackendDecorator::exchange(const std::string& mine) {
  return around(Call(), [&] { return inner_->exchange(mine); });
}

PendingPtr BackendDecorator::start(AsyncCollective collective) {
  const bool cuts = collective.kind == CollectiveKind::kAllToAll;
  const bool gathers = collective.kind == CollectiveKind::kAllGather;
  Call call{
      .kind = collective.kind,
      .op = collective.op,
      .dim = collective.dim,
      .shard_dim = cuts ? collective.shard_dim : -1,
      .sizes = collective.sizes,
      .gathered_size = gathers ? collective.gathered_size : -1};
  // Without its memory, which a backend may read in place if nobody holds it.
  call.inputs = {collective.input.to(at::kMeta)};
  return around(
      std::move(call), [&] { return inner_->start(std::move(collective)); });
}

void BackendDecorator::assume(const Spec& spec) {
  inner_->assume(spec);
}

} // namespace dtensor::detail

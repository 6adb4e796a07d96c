// SPDX-License-Identifier: BSD-3-Clause
// Defaults built on the seven functions of every backend: each collective
// becomes one over a buffer with the members' shards in rank order.
#include <dtensor/comm/group_backend.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/accumulate.h>
#include <dtensor/comm/group_checks_impl.h>
#include <dtensor/comm/shard_buffers_impl.h>
#include <dtensor/error.h>

namespace dtensor {

using namespace detail;

namespace {

at::Tensor longs_on(c10::Device device, std::vector<int64_t> values) {
  return at::from_blob(
             values.data(), {static_cast<int64_t>(values.size())}, at::kLong)
      .clone()
      .to(device);
}

std::vector<int64_t> values_of(const at::Tensor& longs) {
  const at::Tensor here = longs.cpu();
  const auto* begin = here.const_data_ptr<int64_t>();
  return {begin, begin + here.numel()};
}

// Extracts this rank's shape from the numbers that `member` sent: for each rank
// the number of dimensions, followed by the sizes.
Sizes parse_shape(
    const GroupMembers& members,
    size_t member,
    SizesRef numbers) {
  for (int64_t to = 0; !numbers.empty(); ++to) {
    const auto dims = static_cast<size_t>(numbers.front());
    if (dims >= numbers.size()) {
      break;
    }
    const SizesRef shape = numbers.slice(1, dims);
    if (to == members.rank) {
      return Sizes(shape);
    }
    numbers = numbers.slice(1 + dims);
  }
  DTENSOR_THROW(
      "[all_to_all] rank {} of \"{}\" sent no shape for the tensor to rank {}. "
      "Run the same program on all ranks.",
      members.ranks[member],
      members.label,
      members.ranks[static_cast<size_t>(members.rank)]);
}

} // namespace

at::Tensor GroupBackend::all_reduce_in_place(
    const at::Tensor& tensor,
    ReduceOp op) {
  return all_reduce(tensor, op);
}

bool GroupBackend::progresses_in_background(c10::DeviceType /*device*/) const {
  return false;
}

at::Tensor GroupBackend::gather_along(
    const at::Tensor& input,
    int64_t dim,
    SizesRef sizes) {
  const Sizes known =
      sizes.empty() ? exchange_sizes(input.size(dim)) : Sizes(sizes);
  const auto shapes = shapes_along(input.sizes(), dim, known);
  return concat_from_buffer(
      all_gather(input.view({-1}), counts_of(shapes)), shapes, dim);
}

at::Tensor GroupBackend::reduce_scatter_along(
    const at::Tensor& input,
    int64_t dim,
    SizesRef sizes,
    ReduceOp op) {
  const Sizes known =
      sizes.empty() ? chunk_sizes(input.size(dim), size()) : Sizes(sizes);
  const auto shapes = shapes_along(input.sizes(), dim, known);
  const at::Tensor buffer = split_into_buffer(input, dim, known);
  return reduce_scatter(buffer, counts_of(shapes), op)
      .view(shapes[static_cast<size_t>(rank())]);
}

at::Tensor GroupBackend::shard_dim_alltoall(
    const at::Tensor& input,
    int64_t gather_dim,
    int64_t shard_dim,
    SizesRef sizes) {
  const Sizes known =
      sizes.empty() ? exchange_sizes(input.size(gather_dim)) : Sizes(sizes);
  const Sizes cut = chunk_sizes(input.size(shard_dim), size());
  const int64_t mine = cut[static_cast<size_t>(rank())];
  const auto shapes =
      shapes_along(resized(input.sizes(), shard_dim, mine), gather_dim, known);
  return at::cat(
      GroupBackend::exchange_parts(split(input, shard_dim, cut), shapes),
      gather_dim);
}

GroupBackend::Tensors GroupBackend::exchange_parts(
    const Tensors& inputs,
    Shapes shapes) {
  const auto known = shapes.empty() ? exchange_shapes(inputs) : shapes.vec();
  const at::Tensor buffer = all_to_all(
      in_one_buffer(inputs), counts_of(shapes_of(inputs)), counts_of(known));
  return out_of_buffer(buffer, known);
}

at::Tensor GroupBackend::scatter(
    const Tensors& inputs,
    const at::Tensor& like,
    int64_t root) {
  const bool gives = rank() == root;
  const at::Tensor& mine = gives ? inputs[static_cast<size_t>(rank())] : like;
  const Sizes none(static_cast<size_t>(size()), 0);
  Sizes received = none;
  received[static_cast<size_t>(root)] = mine.numel();
  const at::Tensor buffer =
      gives ? in_one_buffer(inputs) : at::empty({0}, like.options());
  return all_to_all(
             buffer, gives ? counts_of(shapes_of(inputs)) : none, received)
      .view(mine.sizes());
}

GroupBackend::Tensors
GroupBackend::gather(const at::Tensor& input, Shapes shapes, int64_t root) {
  const Sizes none(static_cast<size_t>(size()), 0);
  std::vector<Sizes> known = shapes.vec();
  if (known.empty()) {
    Tensors to_root(static_cast<size_t>(size()), at::empty({0}));
    to_root[static_cast<size_t>(root)] = input;
    known = exchange_shapes(to_root);
  }
  Sizes sent = none;
  sent[static_cast<size_t>(root)] = input.numel();
  const bool takes = rank() == root;
  const at::Tensor buffer =
      all_to_all(input.view({-1}), sent, takes ? counts_of(known) : none);
  return takes ? out_of_buffer(buffer, known) : Tensors();
}

void GroupBackend::barrier() {
  all_reduce(longs_on(needs_.device, {0}), ReduceOp::kSum);
}

std::vector<std::string> GroupBackend::all_gather_strings(
    const std::string& mine) {
  const Sizes lengths = exchange_sizes(static_cast<int64_t>(mine.size()));
  const at::Tensor bytes = at::from_blob(
      const_cast<char*>(mine.data()), // only read
      {static_cast<int64_t>(mine.size())},
      at::kByte);
  const at::Tensor all =
      all_gather(bytes.clone().to(needs_.device), lengths).cpu();
  const auto* at = all.const_data_ptr<uint8_t>();
  std::vector<std::string> texts;
  for (const int64_t length : lengths) {
    texts.emplace_back(at, at + length);
    at += length;
  }
  return texts;
}

// Takes `collective` by value, as overrides move from it.
// NOLINTNEXTLINE(performance-unnecessary-value-param)
PendingPtr GroupBackend::start(AsyncCollective collective) {
  const auto& [kind, input, op, dim, shard_dim, sizes, received, total, out] =
      collective;
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return ready_at(all_reduce(input, op), out);
    case CollectiveKind::kAllGather: {
      const at::Tensor result = gather_along(input, dim, sizes);
      if (result.size(dim) != total) {
        throw_wrong_total("all_gather", label(), dim, result.size(dim), total);
      }
      return ready_at(result, out);
    }
    case CollectiveKind::kReduceScatter:
      return ready_at(reduce_scatter_along(input, dim, sizes, op), out);
    case CollectiveKind::kAllToAll:
      return ready_at(
          received.empty() ? shard_dim_alltoall(input, dim, shard_dim, sizes)
                           : all_to_all(input, sizes, received),
          out);
    default:
      TORCH_INTERNAL_ASSERT(false, "not asynchronous: ", to_string(kind));
  }
}

void GroupBackend::abandon(const std::string& /*why*/) {}

void GroupBackend::assume(const Spec& /*spec*/) {}

Sizes GroupBackend::exchange_sizes(int64_t mine) {
  const Sizes one_each(static_cast<size_t>(size()), 1);
  const auto all =
      values_of(all_gather(longs_on(needs_.device, {mine}), one_each));
  Sizes sizes(all.begin(), all.end());
  check_remote_sizes(members(), sizes);
  return sizes;
}

// Every member sends, for each of its tensors, the number of dimensions
// followed by the sizes.
std::vector<Sizes> GroupBackend::exchange_shapes(const Tensors& sent) {
  std::vector<int64_t> mine;
  for (const at::Tensor& tensor : sent) {
    mine.push_back(tensor.dim());
    mine.insert(mine.end(), tensor.sizes().begin(), tensor.sizes().end());
  }
  const Sizes lengths = exchange_sizes(static_cast<int64_t>(mine.size()));
  const auto all =
      values_of(all_gather(longs_on(needs_.device, mine), lengths));
  std::vector<Sizes> shapes;
  auto member = all.begin();
  for (size_t i = 0; i < lengths.size(); ++i) {
    const auto end = member + lengths[i];
    shapes.push_back(parse_shape(members(), i, Sizes(member, end)));
    check_remote_shape(members(), i, shapes.back());
    member = end;
  }
  return shapes;
}

} // namespace dtensor

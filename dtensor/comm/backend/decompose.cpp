// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/backend/decompose_impl.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/accumulate.h>
#include <dtensor/comm/group/group_checks_impl.h>
#include <dtensor/comm/group/shard_buffers_impl.h>
#include <dtensor/error.h>

namespace dtensor::detail {
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
    std::string_view where,
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
      "[{}] rank {} of \"{}\" sent no shape for the tensor to rank {}. Run the "
      "same program on all ranks.",
      where,
      members.ranks[member],
      members.label,
      members.ranks[static_cast<size_t>(members.rank)]);
}

std::vector<int64_t> gather_longs(
    const GroupBackend& group,
    BeginPrimitive begin,
    std::vector<int64_t> mine,
    Sizes counts) {
  InFlight all = begin(
      {.kind = CollectiveKind::kAllGather,
       .inputs = longs_on(group.needs().device, std::move(mine)),
       .sizes = std::move(counts)});
  return values_of(all.wait().tensor);
}

// One collective on its way to a primitive.
class Decomposition {
 public:
  Decomposition(
      Collective& collective,
      const GroupBackend& group,
      BeginPrimitive begin)
      : c_(collective),
        group_(group),
        begin_(begin) {}

  InFlight run();

 private:
  const at::Tensor& input() const {
    return c_.input();
  }
  size_t me() const {
    return static_cast<size_t>(group_.rank());
  }
  Sizes one_per_member(int64_t value) const {
    return Sizes(static_cast<size_t>(group_.size()), value);
  }

  // Returns true if the input may change before the result is ready.
  bool may_change() const {
    return c_.is_async && !c_.owns_input();
  }
  Sizes known_sizes() const {
    return c_.sizes.empty()
        ? exchange_sizes(
              c_.function_name(), group_, begin_, input().size(c_.dim))
        : c_.sizes;
  }
  InFlight begin_all_to_all(at::Tensor buffer, Sizes sent, Sizes received) {
    return begin_(
        {.kind = CollectiveKind::kAllToAll,
         .is_async = c_.is_async,
         .inputs = std::move(buffer),
         .sizes = std::move(sent),
         .received = std::move(received)});
  }

  InFlight as_it_is();
  InFlight all_gather();
  InFlight reduce_scatter();
  InFlight all_to_all();
  InFlight shard_dim_alltoall();
  InFlight scatter();
  InFlight gather();
  InFlight barrier();
  InFlight all_gather_strings();

  Collective& c_;
  const GroupBackend& group_;
  BeginPrimitive begin_;
};

InFlight Decomposition::run() {
  switch (c_.kind) {
    case CollectiveKind::kAllGather:
      return all_gather();
    case CollectiveKind::kReduceScatter:
      return reduce_scatter();
    case CollectiveKind::kAllToAll:
      if (!c_.received.empty()) {
        return as_it_is();
      }
      return c_.shard_dim >= 0 ? shard_dim_alltoall() : all_to_all();
    case CollectiveKind::kScatter:
      return scatter();
    case CollectiveKind::kGather:
      return gather();
    case CollectiveKind::kBarrier:
      return barrier();
    case CollectiveKind::kAllGatherStrings:
      return all_gather_strings();
    default:
      return as_it_is();
  }
}

// An asynchronous all_reduce may overwrite its input and return it as the
// result. An input that the collective owns therefore loses its history.
InFlight Decomposition::as_it_is() {
  if (c_.kind == CollectiveKind::kAllReduce && c_.is_async) {
    c_.inputs[0] = may_change() ? input().clone() : input().detach();
  }
  return begin_(std::move(c_));
}

InFlight Decomposition::all_gather() {
  const Sizes sizes = known_sizes();
  check_gathered_size(c_, group_.label(), c10::sum_integers(sizes));
  const auto shapes = shapes_along(input().sizes(), c_.dim, sizes);
  const at::Tensor mine = may_change() ? input().clone() : input();
  return begin_({.kind = CollectiveKind::kAllGather,
                 .is_async = c_.is_async,
                 .inputs = mine.view({-1}),
                 .sizes = counts_of(shapes)})
      .then([shapes, dim = c_.dim](const at::Tensor& buffer) {
        return concat_from_buffer(buffer, shapes, dim);
      });
}

InFlight Decomposition::reduce_scatter() {
  const Sizes sizes = c_.sizes.empty()
      ? chunk_sizes(input().size(c_.dim), group_.size())
      : c_.sizes;
  const auto shapes = shapes_along(input().sizes(), c_.dim, sizes);
  const bool changes = may_change();
  at::Tensor buffer = split_into_buffer(input(), c_.dim, sizes);
  if (changes && buffer.is_alias_of(input())) {
    buffer = buffer.clone();
  }
  return begin_({.kind = CollectiveKind::kReduceScatter,
                 .is_async = c_.is_async,
                 .op = c_.op,
                 .inputs = std::move(buffer),
                 .sizes = counts_of(shapes)})
      .then([mine = shapes[me()]](const at::Tensor& shard) {
        return shard.view(mine);
      });
}

InFlight Decomposition::shard_dim_alltoall() {
  const Sizes known = known_sizes();
  const Sizes chunks = chunk_sizes(input().size(c_.shard_dim), group_.size());
  const auto sent = split(input(), c_.shard_dim, chunks);
  const auto shapes = shapes_along(
      resized(input().sizes(), c_.shard_dim, chunks[me()]), c_.dim, known);
  return begin_all_to_all(
             in_one_buffer(sent), counts_of(shapes_of(sent)), counts_of(shapes))
      .then([shapes, dim = c_.dim](const at::Tensor& buffer) {
        return concat_from_buffer(buffer, shapes, dim);
      });
}

InFlight Decomposition::all_to_all() {
  const auto shapes = c_.shapes.empty()
      ? exchange_shapes(c_.function_name(), group_, begin_, c_.inputs)
      : c_.shapes;
  return begin_all_to_all(
             in_one_buffer(c_.inputs),
             counts_of(shapes_of(c_.inputs)),
             counts_of(shapes))
      .then([shapes](const at::Tensor& buffer) {
        return out_of_buffer(buffer, shapes);
      });
}

InFlight Decomposition::scatter() {
  const bool is_root = group_.rank() == c_.root;
  const at::Tensor& mine = is_root ? c_.inputs[me()] : c_.like;
  Sizes received = one_per_member(0);
  received[static_cast<size_t>(c_.root)] = mine.numel();
  return begin_all_to_all(
             is_root ? in_one_buffer(c_.inputs)
                     : at::empty({0}, c_.like.options()),
             is_root ? counts_of(shapes_of(c_.inputs)) : one_per_member(0),
             std::move(received))
      .then([shape = Sizes(mine.sizes())](const at::Tensor& buffer) {
        return buffer.view(shape);
      });
}

InFlight Decomposition::gather() {
  const bool is_root = group_.rank() == c_.root;
  const auto root = static_cast<size_t>(c_.root);
  std::vector<Sizes> shapes = c_.shapes;
  if (shapes.empty()) {
    std::vector<at::Tensor> to_root(
        static_cast<size_t>(group_.size()), at::empty({0}));
    to_root[root] = input();
    shapes = exchange_shapes(c_.function_name(), group_, begin_, to_root);
  }
  Sizes sent = one_per_member(0);
  sent[root] = input().numel();
  InFlight gathered = begin_all_to_all(
      input().view({-1}),
      std::move(sent),
      is_root ? counts_of(shapes) : one_per_member(0));
  return std::move(gathered).then([=](const at::Tensor& buffer) {
    return is_root ? out_of_buffer(buffer, shapes) : std::vector<at::Tensor>();
  });
}

InFlight Decomposition::barrier() {
  return begin_({.kind = CollectiveKind::kAllReduce,
                 .inputs = longs_on(group_.needs().device, {0})})
      .then([](const at::Tensor& /*sum*/) { return at::Tensor(); });
}

InFlight Decomposition::all_gather_strings() {
  const Sizes lengths =
      exchange_sizes(c_.function_name(), group_, begin_, input().numel());
  return begin_({.kind = CollectiveKind::kAllGather,
                 .inputs = input().to(group_.needs().device),
                 .sizes = lengths})
      .then([lengths](const at::Tensor& buffer) {
        return split(buffer.cpu(), 0, lengths);
      });
}

} // namespace

InFlight decompose(
    Collective&& collective,
    const GroupBackend& group,
    BeginPrimitive begin) {
  const at::Tensor out = std::move(collective.out);
  return Decomposition(collective, group, begin).run().into(out);
}

Sizes exchange_sizes(
    std::string_view where,
    const GroupBackend& group,
    BeginPrimitive begin,
    int64_t mine) {
  const auto all = gather_longs(
      group, begin, {mine}, Sizes(static_cast<size_t>(group.size()), 1));
  Sizes sizes(all.begin(), all.end());
  check_remote_sizes(where, group.members(), sizes);
  return sizes;
}

// Every member sends, for each of its tensors, the number of dimensions
// followed by the sizes.
std::vector<Sizes> exchange_shapes(
    std::string_view where,
    const GroupBackend& group,
    BeginPrimitive begin,
    c10::ArrayRef<at::Tensor> sent) {
  std::vector<int64_t> mine;
  for (const at::Tensor& tensor : sent) {
    mine.push_back(tensor.dim());
    mine.insert(mine.end(), tensor.sizes().begin(), tensor.sizes().end());
  }
  const Sizes lengths =
      exchange_sizes(where, group, begin, static_cast<int64_t>(mine.size()));
  const auto all = gather_longs(group, begin, std::move(mine), lengths);
  std::vector<Sizes> shapes;
  auto member = all.begin();
  for (size_t i = 0; i < lengths.size(); ++i) {
    const auto end = member + lengths[i];
    shapes.push_back(
        parse_shape(where, group.members(), i, Sizes(member, end)));
    check_remote_shape(where, group.members(), i, shapes.back());
    member = end;
  }
  return shapes;
}

} // namespace dtensor::detail

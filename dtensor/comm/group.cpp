// SPDX-License-Identifier: BSD-3-Clause
// Code shared by all groups: returns the input in a group of one rank, checks
// arguments, and notifies this rank's observers.
#include <dtensor/comm/group.h>
#include <dtensor/comm/group/backend_call_impl.h>
#include <dtensor/comm/group/group_checks_impl.h>
#include <dtensor/comm/group/owner_impl.h>
#include <dtensor/comm/group/shard_buffers_impl.h>
#include <dtensor/comm/group_backend.h>
#include <dtensor/comm/observer.h>
#include <dtensor/comm/world.h>
#include <dtensor/error.h>
#include <dtensor/layout/text.h>

namespace dtensor {

using namespace detail;

namespace {

void check_member(std::string_view where, const Group& group, int64_t rank) {
  DTENSOR_CHECK_INDEX(
      rank >= 0 && rank < group.size(),
      "[{}] no rank {} in \"{}\", which has {}. Pass a position in the group, "
      "not a global rank.",
      where,
      rank,
      group.label(),
      detail::pluralize(group.size(), "rank"));
}

void check_peer(std::string_view where, const Group& group, int64_t rank) {
  check_member(where, group, rank);
  DTENSOR_CHECK_VALUE(
      rank != group.rank(),
      "[{}] rank {} of \"{}\" is the caller itself. Pass another rank.",
      where,
      rank,
      group.label());
}

void check_one_each(
    std::string_view where,
    const Group& group,
    const std::vector<at::Tensor>& inputs) {
  DTENSOR_CHECK_VALUE(
      static_cast<int64_t>(inputs.size()) == group.size(),
      "[{}] needs one tensor for each rank of \"{}\", which has {}: got {}. "
      "Pass empty tensors where nothing is sent.",
      where,
      group.label(),
      detail::pluralize(group.size(), "rank"),
      inputs.size());
  for (const at::Tensor& input : inputs) {
    check_defined(where, input);
    DTENSOR_CHECK_TYPE(
        input.scalar_type() == inputs.front().scalar_type(),
        "[{}] the tensors differ in dtype: {} and {}. Convert them to one "
        "dtype.",
        where,
        short_name(inputs.front().scalar_type()),
        short_name(input.scalar_type()));
    DTENSOR_CHECK_VALUE(
        input.device() == inputs.front().device(),
        "[{}] the tensors are on different devices: {} and {}. Move them to "
        "one.",
        where,
        inputs.front().device(),
        input.device());
  }
}

} // namespace

Group::Group(GroupMembers alone)
    : ranks_(std::move(alone.ranks)),
      rank_(alone.rank),
      label_(std::move(alone.label)),
      owner_(this_world()) {}

Group::Group(GroupBackendPtr backend, std::string label)
    : Group({backend->members().ranks, backend->rank(), std::move(label)}) {
  exchanges_sizes_ = backend->needs().sizes;
  backend_ = std::move(backend);
  pass_errors_to(backend_);
}

void Group::check_owned_by_this_rank(std::string_view where) const {
  if (C10_UNLIKELY(owner_.get() != this_thread.world)) {
    check_owner(
        where, [&] { return "group \"" + label_ + "\""; }, owner_.get());
  }
}

CollectiveResult Group::run(Collective&& collective) {
  if (collective.kind != CollectiveKind::kAllGatherStrings) {
    observe(*this, collective);
  }
  const BackendCall call(*backend_, collective);
  return std::move(backend_->submit(std::move(collective)).wait());
}

at::Tensor Group::all_reduce(const at::Tensor& input, ReduceOp op) {
  check_owned_by_this_rank("all_reduce");
  if (size() == 1) {
    return input;
  }
  check_defined("all_reduce", input);
  check_reducible("all_reduce", input.scalar_type(), op);
  return run({.kind = CollectiveKind::kAllReduce, .op = op, .inputs = input})
      .tensor;
}

// Notifies observers within the call, but after the collective, because the
// size of the result is known only then.
at::Tensor
Group::all_gather(const at::Tensor& input, int64_t dim, SizesRef sizes) {
  check_owned_by_this_rank("all_gather");
  if (size() == 1) {
    return input;
  }
  const int64_t wrapped = wrap_dim("all_gather", input, dim);
  check_shard_size("all_gather", *this, input, wrapped, sizes);
  Collective collective{
      .kind = CollectiveKind::kAllGather,
      .dim = wrapped,
      .inputs = input,
      .sizes = Sizes(sizes)};
  const BackendCall call(*backend_, collective);
  at::Tensor result =
      std::move(backend_->submit(std::move(collective)).wait().tensor);
  if (C10_UNLIKELY(comm_observed())) {
    observe(
        *this, {.kind = CollectiveKind::kAllGather, .inputs = input}, result);
  }
  return result;
}

at::Tensor Group::reduce_scatter(
    const at::Tensor& input,
    int64_t dim,
    ReduceOp op,
    SizesRef sizes) {
  check_owned_by_this_rank("reduce_scatter");
  if (size() == 1) {
    return input;
  }
  const int64_t wrapped = wrap_dim("reduce_scatter", input, dim);
  check_total("reduce_scatter", *this, input, wrapped, sizes);
  check_reducible("reduce_scatter", input.scalar_type(), op);
  return run({.kind = CollectiveKind::kReduceScatter,
              .op = op,
              .dim = wrapped,
              .inputs = input,
              .sizes = Sizes(sizes)})
      .tensor;
}

std::vector<at::Tensor> Group::all_to_all(
    const std::vector<at::Tensor>& inputs,
    c10::ArrayRef<Sizes> shapes) {
  check_owned_by_this_rank("all_to_all");
  if (size() == 1) {
    return inputs;
  }
  check_one_each("all_to_all", *this, inputs);
  check_shapes("all_to_all", *this, inputs, shapes);
  return run({.kind = CollectiveKind::kAllToAll,
              .inputs = inputs,
              .shapes = shapes.vec()})
      .tensors;
}

at::Tensor Group::shard_dim_alltoall(
    const at::Tensor& input,
    int64_t gather_dim,
    int64_t shard_dim,
    SizesRef sizes) {
  check_owned_by_this_rank("shard_dim_alltoall");
  if (size() == 1) {
    return input;
  }
  const auto [gathered, sharded] = two_dims(input, gather_dim, shard_dim);
  check_shard_size("shard_dim_alltoall", *this, input, gathered, sizes);
  return run({.kind = CollectiveKind::kAllToAll,
              .dim = gathered,
              .shard_dim = sharded,
              .inputs = input,
              .sizes = Sizes(sizes)})
      .tensor;
}

at::Tensor Group::broadcast(const at::Tensor& input, int64_t root) {
  check_owned_by_this_rank("broadcast");
  if (size() == 1) {
    return input;
  }
  check_defined("broadcast", input);
  check_member("broadcast", *this, root);
  return run({.kind = CollectiveKind::kBroadcast,
              .root = root,
              .inputs = input})
      .tensor;
}

at::Tensor Group::scatter(
    const std::vector<at::Tensor>& inputs,
    const at::Tensor& like,
    int64_t root) {
  check_owned_by_this_rank("scatter");
  if (size() == 1) {
    check_one_each("scatter", *this, inputs);
    return inputs.front();
  }
  check_member("scatter", *this, root);
  Collective collective{
      .kind = CollectiveKind::kScatter, .root = root, .like = like};
  if (rank() == root) {
    check_one_each("scatter", *this, inputs);
    collective.inputs = inputs;
  } else {
    check_defined("scatter", like);
  }
  return run(std::move(collective)).tensor;
}

std::vector<at::Tensor> Group::gather(const at::Tensor& input, int64_t root) {
  check_owned_by_this_rank("gather");
  if (size() == 1) {
    return {input};
  }
  check_defined("gather", input);
  check_member("gather", *this, root);
  return run({.kind = CollectiveKind::kGather, .root = root, .inputs = input})
      .tensors;
}

void Group::send(const at::Tensor& input, int64_t to, int64_t tag) {
  check_owned_by_this_rank("send");
  check_defined("send", input);
  check_peer("send", *this, to);
  run({.kind = CollectiveKind::kSend, .root = to, .tag = tag, .inputs = input});
}

at::Tensor Group::recv(const at::Tensor& like, int64_t from, int64_t tag) {
  check_owned_by_this_rank("recv");
  check_defined("recv", like);
  check_peer("recv", *this, from);
  return run({.kind = CollectiveKind::kRecv,
              .root = from,
              .tag = tag,
              .like = like})
      .tensor;
}

void Group::barrier() {
  check_owned_by_this_rank("barrier");
  if (size() == 1) {
    return;
  }
  run({.kind = CollectiveKind::kBarrier});
}

std::vector<std::string> Group::all_gather_strings(const std::string& mine) {
  check_owned_by_this_rank("all_gather_strings");
  if (size() == 1) {
    return {mine};
  }
  return strings_of(run({.kind = CollectiveKind::kAllGatherStrings,
                         .inputs = string_tensor(mine)})
                        .tensors);
}

void Group::assume(const Spec& spec) {
  check_owned_by_this_rank("assume");
  if (size() > 1) {
    backend_->assume(spec);
  }
}

} // namespace dtensor

// SPDX-License-Identifier: BSD-3-Clause
// Code shared by all groups: returns the input in a group of one rank, checks
// arguments, and notifies this rank's observers.
#include <dtensor/comm/group.h>
#include <dtensor/comm/group_backend.h>
#include <dtensor/comm/group_checks_impl.h>
#include <dtensor/comm/owner_impl.h>
#include <dtensor/comm/world_impl.h>
#include <dtensor/error.h>
#include <dtensor/layout/text.h>

namespace dtensor {

using namespace detail;

namespace {

void check_member(std::string_view where, const Group& group, int64_t rank) {
  DTENSOR_CHECK_INDEX(
      rank >= 0 && rank < group.size(),
      "[{}] no rank {} in \"{}\", which has {} ranks. Pass a position in the "
      "group, not a global rank.",
      where,
      rank,
      group.label(),
      group.size());
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
      "[{}] needs one tensor for each of the {} ranks of \"{}\": got {}. Pass "
      "empty tensors where nothing is sent.",
      where,
      group.size(),
      group.label(),
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
  asks_for_sizes_ = backend->needs().sizes;
  backend_ = std::move(backend);
}

void Group::check_mine(std::string_view where) const {
  if (C10_UNLIKELY(owner_.get() != this_thread.world)) {
    check_owner(
        where, [&] { return "group \"" + label_ + "\""; }, owner_.get());
  }
}

at::Tensor Group::all_reduce(const at::Tensor& input, ReduceOp op) {
  check_mine("all_reduce");
  if (size() == 1) {
    return input;
  }
  check_defined("all_reduce", input);
  check_reducible("all_reduce", input.scalar_type(), op);
  observe_ring(*this, CollectiveKind::kAllReduce, bytes(input), bytes(input));
  const PreparedInput hand(*backend_, "dtensor::all_reduce");
  return backend_->all_reduce(*hand(input), op);
}

// Notifies observers afterwards: only then is the size of the result known.
at::Tensor
Group::all_gather(const at::Tensor& input, int64_t dim, SizesRef sizes) {
  check_mine("all_gather");
  if (size() == 1) {
    return input;
  }
  const int64_t wrapped = wrap_dim("all_gather", input, dim);
  check_part("all_gather", *this, input, wrapped, sizes);
  const PreparedInput hand(*backend_, "dtensor::all_gather");
  at::Tensor result = backend_->gather_along(*hand(input), wrapped, sizes);
  observe_ring(*this, CollectiveKind::kAllGather, bytes(input), bytes(result));
  return result;
}

at::Tensor Group::reduce_scatter(
    const at::Tensor& input,
    int64_t dim,
    ReduceOp op,
    SizesRef sizes) {
  check_mine("reduce_scatter");
  if (size() == 1) {
    return input;
  }
  const int64_t wrapped = wrap_dim("reduce_scatter", input, dim);
  check_total("reduce_scatter", *this, input, wrapped, sizes);
  check_reducible("reduce_scatter", input.scalar_type(), op);
  observe_ring(
      *this, CollectiveKind::kReduceScatter, bytes(input), bytes(input));
  const PreparedInput hand(*backend_, "dtensor::reduce_scatter");
  return backend_->reduce_scatter_along(*hand(input), wrapped, sizes, op);
}

std::vector<at::Tensor> Group::all_to_all(
    const std::vector<at::Tensor>& inputs,
    c10::ArrayRef<Sizes> shapes) {
  check_mine("all_to_all");
  if (size() == 1) {
    return inputs;
  }
  check_one_each("all_to_all", *this, inputs);
  check_shapes("all_to_all", *this, inputs, shapes);
  const int64_t total = bytes(inputs);
  const int64_t kept = bytes(inputs[static_cast<size_t>(rank())]);
  observe(
      *this,
      CollectiveKind::kAllToAll,
      total,
      static_cast<double>(total - kept));
  PreparedInput hand(*backend_, "dtensor::all_to_all");
  return backend_->exchange_parts(hand(inputs), shapes);
}

at::Tensor Group::shard_dim_alltoall(
    const at::Tensor& input,
    int64_t gather_dim,
    int64_t shard_dim,
    SizesRef sizes) {
  check_mine("shard_dim_alltoall");
  if (size() == 1) {
    return input;
  }
  const auto [gathered, cut] = two_dims(input, gather_dim, shard_dim);
  check_part("shard_dim_alltoall", *this, input, gathered, sizes);
  observe_shard_dim_alltoall(*this, input, cut);
  const PreparedInput hand(*backend_, "dtensor::shard_dim_alltoall");
  return backend_->shard_dim_alltoall(*hand(input), gathered, cut, sizes);
}

at::Tensor Group::broadcast(const at::Tensor& input, int64_t root) {
  check_mine("broadcast");
  if (size() == 1) {
    return input;
  }
  check_defined("broadcast", input);
  check_member("broadcast", *this, root);
  observe(
      *this,
      CollectiveKind::kBroadcast,
      bytes(input),
      static_cast<double>(bytes(input)));
  const PreparedInput hand(*backend_, "dtensor::broadcast");
  return backend_->broadcast(*hand(input), root);
}

at::Tensor Group::scatter(
    const std::vector<at::Tensor>& inputs,
    const at::Tensor& like,
    int64_t root) {
  check_mine("scatter");
  if (size() == 1) {
    check_one_each("scatter", *this, inputs);
    return inputs.front();
  }
  check_member("scatter", *this, root);
  if (rank() == root) {
    check_one_each("scatter", *this, inputs);
  } else {
    check_defined("scatter", like);
  }
  const int64_t total = rank() == root ? bytes(inputs) : 0;
  observe_ring(*this, CollectiveKind::kScatter, total, total);
  PreparedInput hand(*backend_, "dtensor::scatter");
  return backend_->scatter(hand(inputs), like, root);
}

std::vector<at::Tensor> Group::gather(const at::Tensor& input, int64_t root) {
  check_mine("gather");
  if (size() == 1) {
    return {input};
  }
  check_defined("gather", input);
  check_member("gather", *this, root);
  observe(
      *this,
      CollectiveKind::kGather,
      bytes(input),
      rank() == root ? 0 : static_cast<double>(bytes(input)));
  const PreparedInput hand(*backend_, "dtensor::gather");
  return backend_->gather(*hand(input), {}, root);
}

void Group::send(const at::Tensor& input, int64_t to, int64_t tag) {
  check_mine("send");
  check_defined("send", input);
  check_peer("send", *this, to);
  observe(
      *this,
      CollectiveKind::kSend,
      bytes(input),
      static_cast<double>(bytes(input)));
  const PreparedInput hand(*backend_, "dtensor::send");
  backend_->send(*hand(input), to, tag);
}

at::Tensor Group::recv(const at::Tensor& like, int64_t from, int64_t tag) {
  check_mine("recv");
  check_defined("recv", like);
  check_peer("recv", *this, from);
  observe(*this, CollectiveKind::kRecv, 0, 0);
  const PreparedInput hand(*backend_, "dtensor::recv");
  return backend_->recv(like, from, tag);
}

void Group::barrier() {
  check_mine("barrier");
  if (size() == 1) {
    return;
  }
  observe(*this, CollectiveKind::kBarrier, 0, 0);
  const PreparedInput hand(*backend_, "dtensor::barrier");
  backend_->barrier();
}

std::vector<std::string> Group::all_gather_strings(const std::string& mine) {
  check_mine("all_gather_strings");
  if (size() == 1) {
    return {mine};
  }
  const PreparedInput hand(*backend_, "dtensor::all_gather_strings");
  return backend_->all_gather_strings(mine);
}

void Group::assume(const Spec& spec) {
  check_mine("assume");
  if (size() > 1) {
    backend_->assume(spec);
  }
}

} // namespace dtensor

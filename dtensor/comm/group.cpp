// SPDX-License-Identifier: BSD-3-Clause
// What all groups share: a group of one rank returns its input, arguments are
// checked, and this rank's observers hear of the call.
#include <dtensor/comm/group.h>
#include <dtensor/comm/group_checks_impl.h>
#include <dtensor/comm/owner_impl.h>
#include <dtensor/comm/world_impl.h>
#include <dtensor/error.h>
#include <dtensor/layout/text.h>

namespace dtensor {

using namespace detail;

namespace {

int64_t total_bytes(const std::vector<at::Tensor>& tensors) {
  int64_t total = 0;
  for (const at::Tensor& tensor : tensors) {
    total += bytes(tensor);
  }
  return total;
}

void check_member(std::string_view where, const Group& group, int64_t rank) {
  DTENSOR_CHECK_INDEX(
      rank >= 0 && rank < group.size(),
      where,
      "no rank ",
      rank,
      " in \"",
      group.label(),
      "\", which has ",
      group.size(),
      " ranks. Pass a position in the group, not a global rank.");
}

void check_peer(std::string_view where, const Group& group, int64_t rank) {
  check_member(where, group, rank);
  DTENSOR_CHECK_VALUE(
      rank != group.rank(),
      where,
      "rank ",
      rank,
      " of \"",
      group.label(),
      "\" is the caller itself. Pass another rank.");
}

void check_one_each(
    std::string_view where,
    const Group& group,
    const std::vector<at::Tensor>& inputs) {
  DTENSOR_CHECK_VALUE(
      static_cast<int64_t>(inputs.size()) == group.size(),
      where,
      "needs one tensor for each of the ",
      group.size(),
      " ranks of \"",
      group.label(),
      "\": got ",
      inputs.size(),
      ". Pass empty tensors where nothing is sent.");
  for (const at::Tensor& input : inputs) {
    check_defined(where, input);
    DTENSOR_CHECK_TYPE(
        input.scalar_type() == inputs.front().scalar_type(),
        where,
        "the tensors differ in dtype: ",
        short_name(inputs.front().scalar_type()),
        " and ",
        short_name(input.scalar_type()),
        ". Convert them to one dtype.");
  }
}

} // namespace

Group::Group(std::vector<int64_t> ranks, int64_t rank, std::string label)
    : ranks_(std::move(ranks)),
      rank_(rank),
      label_(std::move(label)),
      owner_(this_world()) {}

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
  tell(
      *this,
      CollectiveKind::kAllReduce,
      bytes(input),
      2 * ring_bytes(*this, bytes(input)));
  return do_all_reduce(input, op);
}

// Told afterwards: only then is the size of the result known.
at::Tensor Group::all_gather(const at::Tensor& input, int64_t dim) {
  check_mine("all_gather");
  if (size() == 1) {
    return input;
  }
  at::Tensor result = do_all_gather(input, wrap_dim("all_gather", input, dim));
  tell(
      *this,
      CollectiveKind::kAllGather,
      bytes(input),
      ring_bytes(*this, bytes(result)));
  return result;
}

at::Tensor
Group::reduce_scatter(const at::Tensor& input, int64_t dim, ReduceOp op) {
  check_mine("reduce_scatter");
  if (size() == 1) {
    return input;
  }
  const int64_t wrapped = wrap_dim("reduce_scatter", input, dim);
  check_reducible("reduce_scatter", input.scalar_type(), op);
  tell(
      *this,
      CollectiveKind::kReduceScatter,
      bytes(input),
      ring_bytes(*this, bytes(input)));
  return do_reduce_scatter(input, wrapped, op);
}

std::vector<at::Tensor> Group::all_to_all(
    const std::vector<at::Tensor>& inputs) {
  check_mine("all_to_all");
  if (size() == 1) {
    return inputs;
  }
  check_one_each("all_to_all", *this, inputs);
  const int64_t total = total_bytes(inputs);
  const int64_t kept = bytes(inputs[static_cast<size_t>(rank())]);
  tell(
      *this,
      CollectiveKind::kAllToAll,
      total,
      static_cast<double>(total - kept));
  return do_all_to_all(inputs);
}

at::Tensor Group::shard_dim_alltoall(
    const at::Tensor& input,
    int64_t gather_dim,
    int64_t shard_dim) {
  check_mine("shard_dim_alltoall");
  if (size() == 1) {
    return input;
  }
  const auto [gathered, cut] = two_dims(input, gather_dim, shard_dim);
  tell_shard_dim_alltoall(*this, input, cut);
  return do_shard_dim_alltoall(input, gathered, cut);
}

at::Tensor Group::broadcast(const at::Tensor& input, int64_t root) {
  check_mine("broadcast");
  if (size() == 1) {
    return input;
  }
  check_defined("broadcast", input);
  check_member("broadcast", *this, root);
  tell(
      *this,
      CollectiveKind::kBroadcast,
      bytes(input),
      static_cast<double>(bytes(input)));
  return do_broadcast(input, root);
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
  const int64_t total = rank() == root ? total_bytes(inputs) : 0;
  tell(*this, CollectiveKind::kScatter, total, ring_bytes(*this, total));
  return do_scatter(inputs, like, root);
}

std::vector<at::Tensor> Group::gather(const at::Tensor& input, int64_t root) {
  check_mine("gather");
  if (size() == 1) {
    return {input};
  }
  check_defined("gather", input);
  check_member("gather", *this, root);
  tell(
      *this,
      CollectiveKind::kGather,
      bytes(input),
      rank() == root ? 0 : static_cast<double>(bytes(input)));
  return do_gather(input, root);
}

void Group::send(const at::Tensor& input, int64_t to, int64_t tag) {
  check_mine("send");
  check_defined("send", input);
  check_peer("send", *this, to);
  tell(
      *this,
      CollectiveKind::kSend,
      bytes(input),
      static_cast<double>(bytes(input)));
  do_send(input, to, tag);
}

at::Tensor Group::recv(const at::Tensor& like, int64_t from, int64_t tag) {
  check_mine("recv");
  check_defined("recv", like);
  check_peer("recv", *this, from);
  tell(*this, CollectiveKind::kRecv, 0, 0);
  return do_recv(like, from, tag);
}

void Group::barrier() {
  check_mine("barrier");
  if (size() == 1) {
    return;
  }
  tell(*this, CollectiveKind::kBarrier, 0, 0);
  do_barrier();
}

std::vector<std::string> Group::exchange(const std::string& mine) {
  check_mine("exchange");
  if (size() == 1) {
    return {mine};
  }
  return do_exchange(mine);
}

void Group::assume(const Spec& spec) {
  check_mine("assume");
  if (size() > 1) {
    do_assume(spec);
  }
}

} // namespace dtensor

// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/threads/thread_meeting_impl.h>
#include <dtensor/error.h>

namespace dtensor::detail {

ThreadGroup::ThreadGroup(
    std::vector<int64_t> ranks,
    int64_t rank,
    std::string label,
    std::shared_ptr<ThreadHub> hub)
    : Group(std::move(ranks), rank, std::move(label)),
      hub_(std::move(hub)),
      channel_(hub_->channel(this->ranks())) {}

at::Tensor ThreadGroup::do_all_reduce(const at::Tensor& input, ReduceOp op) {
  Signature signature = sign(CollectiveKind::kAllReduce, input);
  signature.op = op;
  const auto small = meet_small(
      signature,
      &input,
      input.sizes(),
      [&](Published members, const at::Tensor& out) {
        reduce_small(signature, members, out);
      });
  if (small) {
    return *small;
  }
  const PlainTensors guard;
  Call call;
  call.kind = CollectiveKind::kAllReduce;
  call.inputs = {published(input)};
  call.op = op;
  call.output = empty(input.sizes(), input);
  finish_device_work(call.output); // peers write it
  meet(call, [&] {
    try {
      // Together the members read every input and write every output once.
      reduce_range(
          channel_->calls(), rank(), chunk(input.numel(), size(), rank()));
      finish_device_work(call.output);
    } catch (...) {
      channel_->fail(rank());
      throw;
    }
  });
  if (channel_->any_failed(rank())) {
    throw RankEnded(); // that member throws the reason
  }
  return call.output;
}

at::Tensor ThreadGroup::do_reduce_scatter(
    const at::Tensor& input,
    int64_t dim,
    ReduceOp op) {
  const Interval mine = chunk(input.size(dim), size(), rank());
  Signature signature = sign(CollectiveKind::kReduceScatter, input);
  signature.op = op;
  signature.dim = static_cast<uint8_t>(dim);
  at::DimVector sizes(input.sizes());
  sizes[static_cast<size_t>(dim)] = mine.size();
  const auto small = meet_small(
      signature, &input, sizes, [&](Published members, const at::Tensor& out) {
        reduce_scatter_small(signature, members, rank(), out);
      });
  if (small) {
    return *small;
  }
  const PlainTensors guard;
  Call call;
  call.kind = CollectiveKind::kReduceScatter;
  call.inputs = {published(input)};
  call.dim = dim;
  call.op = op;
  return meet(
      call, [&] { return reduce_scattered(channel_->calls(), rank()); });
}

at::Tensor ThreadGroup::do_all_gather(const at::Tensor& input, int64_t dim) {
  Signature signature = sign(CollectiveKind::kAllGather, input);
  signature.dim = static_cast<uint8_t>(dim);
  at::DimVector sizes(input.sizes());
  sizes[static_cast<size_t>(dim)] *= size();
  const auto small = meet_small(
      signature, &input, sizes, [&](Published members, const at::Tensor& out) {
        gather_small(signature, members, out);
      });
  if (small) {
    return *small;
  }
  const PlainTensors guard;
  Call call;
  call.kind = CollectiveKind::kAllGather;
  call.inputs = {published(input)};
  call.dim = dim;
  return meet(call, [&] { return gathered(channel_->calls(), rank()); });
}

at::Tensor ThreadGroup::do_shard_dim_alltoall(
    const at::Tensor& input,
    int64_t gather_dim,
    int64_t shard_dim) {
  Signature signature = sign(CollectiveKind::kAllToAll, input);
  signature.dim = static_cast<uint8_t>(gather_dim);
  signature.root = static_cast<uint16_t>(shard_dim);
  at::DimVector sizes(input.sizes());
  sizes[static_cast<size_t>(gather_dim)] *= size();
  auto& cut = sizes[static_cast<size_t>(shard_dim)];
  cut = chunk(cut, size(), rank()).size();
  const auto small = meet_small(
      signature, &input, sizes, [&](Published members, const at::Tensor& out) {
        exchange_small(signature, members, rank(), out);
      });
  if (small) {
    return *small;
  }
  const PlainTensors guard;
  Call call;
  call.kind = CollectiveKind::kAllToAll;
  call.inputs = {published(input)};
  call.dim = gather_dim;
  call.shard_dim = shard_dim;
  return meet(call, [&] { return exchanged(channel_->calls(), rank()); });
}

std::vector<at::Tensor> ThreadGroup::do_all_to_all(
    const std::vector<at::Tensor>& inputs) {
  const PlainTensors guard;
  Call call;
  call.kind = CollectiveKind::kAllToAll;
  for (const at::Tensor& input : inputs) {
    call.inputs.push_back(published(input));
  }
  const at::Device device = inputs.front().device();
  return meet(call, [&] {
    std::vector<at::Tensor> result;
    for (int64_t member = 0; member < size(); ++member) {
      const auto& theirs = channel_->call(member).inputs;
      result.push_back(copy_to(device, theirs[static_cast<size_t>(rank())]));
    }
    finish_device_work(result.front());
    return result;
  });
}

at::Tensor ThreadGroup::do_broadcast(const at::Tensor& input, int64_t root) {
  Signature signature = sign(CollectiveKind::kBroadcast, input);
  signature.root = static_cast<uint16_t>(root);
  const bool gives = rank() == root;
  const auto small = meet_small(
      signature,
      gives ? &input : nullptr,
      input.sizes(),
      [&](Published members, const at::Tensor& out) {
        if (out.nbytes() > 0) {
          std::memcpy(
              out.data_ptr(), members[static_cast<size_t>(root)], out.nbytes());
        }
      });
  if (small) {
    return *small;
  }
  const PlainTensors guard;
  Call call;
  call.kind = CollectiveKind::kBroadcast;
  // Only the root's contents are read.
  call.inputs = {gives ? published(input) : input};
  call.root = root;
  return meet(call, [&] {
    at::Tensor out = copy_to(input.device(), channel_->call(root).input());
    finish_device_work(out);
    return out;
  });
}

at::Tensor ThreadGroup::do_scatter(
    const std::vector<at::Tensor>& inputs,
    const at::Tensor& like,
    int64_t root) {
  const PlainTensors guard;
  Call call;
  call.kind = CollectiveKind::kScatter;
  call.root = root;
  call.like = like;
  if (rank() == root) {
    for (const at::Tensor& input : inputs) {
      call.inputs.push_back(published(input));
    }
  }
  const at::Device device =
      rank() == root ? inputs.front().device() : like.device();
  return meet(call, [&] {
    const auto& parts = channel_->call(root).inputs;
    at::Tensor out = copy_to(device, parts[static_cast<size_t>(rank())]);
    finish_device_work(out);
    return out;
  });
}

std::vector<at::Tensor> ThreadGroup::do_gather(
    const at::Tensor& input,
    int64_t root) {
  const PlainTensors guard;
  Call call;
  call.kind = CollectiveKind::kGather;
  call.inputs = {published(input)};
  call.root = root;
  return meet(call, [&] {
    std::vector<at::Tensor> result;
    if (rank() == root) {
      for (int64_t member = 0; member < size(); ++member) {
        result.push_back(
            copy_to(input.device(), channel_->call(member).input()));
      }
      finish_device_work(result.front());
    }
    return result;
  });
}

// The message is a copy, so that the sender waits for nobody.
void ThreadGroup::do_send(const at::Tensor& input, int64_t to, int64_t tag) {
  const PlainTensors guard;
  in_place(to_string(CollectiveKind::kSend), [&] {
    at::Tensor message = copy_to(input.device(), input);
    finish_device_work(message);
    channel_->post(rank(), to, tag, std::move(message));
  });
}

at::Tensor
ThreadGroup::do_recv(const at::Tensor& like, int64_t from, int64_t tag) {
  const PlainTensors guard;
  return in_place(to_string(CollectiveKind::kRecv), [&] {
    at::Tensor message = channel_->take(from, rank(), tag, label());
    DTENSOR_CHECK_VALUE(
        message.scalar_type() == like.scalar_type() &&
            message.sizes() == like.sizes(),
        "recv",
        "rank ",
        ranks()[static_cast<size_t>(rank())],
        " expects ",
        describe(like),
        " but rank ",
        ranks()[static_cast<size_t>(from)],
        " sent ",
        describe(message),
        " on \"",
        label(),
        "\". Receive a tensor of the shape and dtype that is sent.");
    return message.to(like.device());
  });
}

void ThreadGroup::do_barrier() {
  Signature signature;
  signature.small = 1;
  if (meet_small(
          signature, nullptr, {0}, [](Published, const at::Tensor&) {})) {
    return;
  }
  Call call;
  call.kind = CollectiveKind::kBarrier;
  meet(call, [] {});
}

std::vector<std::string> ThreadGroup::do_exchange(const std::string& mine) {
  Call call;
  call.text = mine;
  return meet(call, [&] {
    std::vector<std::string> result;
    for (int64_t member = 0; member < size(); ++member) {
      result.push_back(channel_->call(member).text);
    }
    return result;
  });
}

void ThreadGroup::do_assume(const Spec& spec) {
  channel_->assumed(rank()).add(spec);
}

} // namespace dtensor::detail

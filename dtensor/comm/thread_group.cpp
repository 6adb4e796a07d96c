// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dtensor/comm/reduce_impl.h>
#include <dtensor/comm/thread_group_impl.h>
#include <dtensor/error.h>
#include <dtensor/layout/shard_math.h>

namespace dtensor::detail {
namespace {

// Below autograd, whatever the caller's grad mode is.
struct PlainTensors {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  at::NoGradGuard no_grad;
};

// What peers read: row-major and complete, also on a device with a queue.
at::Tensor published(const at::Tensor& tensor) {
  return tensor.contiguous();
}

void finish_device_work(const at::Tensor& tensor) {
  if (tensor.defined() && !tensor.device().is_cpu()) {
    const c10::impl::VirtualGuardImpl device(tensor.device().type());
    device.getStream(tensor.device()).synchronize();
  }
}

void finish_device_work(const Call& call) {
  for (const at::Tensor& tensor : call.inputs) {
    finish_device_work(tensor);
  }
}

at::Tensor empty(at::IntArrayRef sizes, const at::Tensor& like) {
  return at::empty(sizes, like.options());
}

at::Tensor copy_to(const at::Device& device, const at::Tensor& tensor) {
  at::Tensor out = at::empty(tensor.sizes(), tensor.options().device(device));
  out.copy_(tensor);
  return out;
}

// With many ranks or much data each rank reduces its part and reads the other
// parts: 3 passes over the data instead of one per rank.
bool worth_splitting(const at::Tensor& input, int64_t ranks) {
  return ranks > 2 && input.nbytes() >= (size_t{1} << 15);
}

} // namespace

ThreadGroup::ThreadGroup(
    std::vector<int64_t> ranks,
    int64_t rank,
    std::string label,
    std::shared_ptr<ThreadWorld> world)
    : Group(std::move(ranks), rank, std::move(label)),
      world_(std::move(world)),
      channel_(world_ ? world_->channel(this->ranks()) : nullptr) {}

template <typename Body>
auto ThreadGroup::in_place(std::string_view name, const Body& body) {
  try {
    return body();
  } catch (...) {
    world_->set_place(
        ranks()[static_cast<size_t>(rank())],
        c10::str(name, " on \"", label(), "\""),
        std::current_exception());
    throw;
  }
}

template <typename Body>
auto ThreadGroup::meet(Call& call, const Body& body) {
  return in_place(call.name(), [&] {
    finish_device_work(call);
    auto& assumed = channel_->assumed(rank());
    call.assumed = assumed.empty() ? nullptr : &assumed;
    channel_->arrive(rank(), label(), call);
    struct Departure {
      ThreadGroup& group;
      const Call& call;
      bool agreed = false;
      ~Departure() {
        finish_device_work(call);
        group.channel_->sync(group.rank());
        if (agreed && call.assumed != nullptr) {
          group.channel_->assumed(group.rank()).clear();
        }
      }
    } departure{*this, call};
    const auto why = disagreement(channel_->calls(), ranks(), label());
    if (why) {
      throw c10::ValueError({__func__, __FILE__, uint32_t{__LINE__}}, *why);
    }
    departure.agreed = true;
    return body();
  });
}

at::Tensor ThreadGroup::input_of(int64_t member, const at::Tensor& mine) const {
  const at::Tensor& theirs = channel_->call(member).input();
  return theirs.device() == mine.device() ? theirs : theirs.to(mine.device());
}

std::vector<at::Tensor> ThreadGroup::all_inputs(const at::Tensor& mine) const {
  std::vector<at::Tensor> result;
  for (int64_t member = 0; member < size(); ++member) {
    result.push_back(input_of(member, mine));
  }
  return result;
}

at::Tensor ThreadGroup::do_all_reduce(const at::Tensor& input, ReduceOp op) {
  const PlainTensors guard;
  Call call;
  call.kind = CollectiveKind::kAllReduce;
  call.inputs = {published(input)};
  call.op = op;
  at::Tensor out = empty(input.sizes(), input);
  return meet(call, [&] {
    if (worth_splitting(input, size())) {
      reduce_in_parts(call, out);
    } else {
      reduce_into(out, all_inputs(input), op);
    }
    finish_device_work(out);
    return out;
  });
}

// Peers read `out` through call.output after the middle sync, and the
// departure keeps it until all have. Every member syncs, come what may.
void ThreadGroup::reduce_in_parts(Call& call, at::Tensor& out) {
  const at::Tensor flat = out.view({-1});
  std::exception_ptr failure;
  try {
    const Interval mine = chunk(flat.numel(), size(), rank());
    std::vector<at::Tensor> parts = all_inputs(out);
    for (at::Tensor& part : parts) {
      part = part.view({-1}).narrow(0, mine.begin, mine.size());
    }
    reduce_into(flat.narrow(0, mine.begin, mine.size()), parts, call.op);
    finish_device_work(out);
    call.output = flat;
  } catch (...) {
    failure = std::current_exception();
  }
  channel_->sync(rank());
  if (failure) {
    std::rethrow_exception(failure);
  }
  for (int64_t member = 0; member < size(); ++member) {
    const at::Tensor& theirs = channel_->call(member).output;
    if (!theirs.defined()) {
      throw RankEnded(); // that member throws the reason
    }
    const Interval part = chunk(flat.numel(), size(), member);
    if (member != rank()) {
      flat.narrow(0, part.begin, part.size())
          .copy_(theirs.narrow(0, part.begin, part.size()));
    }
  }
}

at::Tensor ThreadGroup::do_all_gather(const at::Tensor& input, int64_t dim) {
  const PlainTensors guard;
  Call call;
  call.kind = CollectiveKind::kAllGather;
  call.inputs = {published(input)};
  call.dim = dim;
  return meet(call, [&] {
    const auto parts = all_inputs(input);
    std::vector<int64_t> sizes = input.sizes().vec();
    sizes[static_cast<size_t>(dim)] = 0;
    for (const at::Tensor& part : parts) {
      sizes[static_cast<size_t>(dim)] += part.size(dim);
    }
    at::Tensor out = empty(sizes, input);
    at::cat_out(out, parts, dim);
    finish_device_work(out);
    return out;
  });
}

at::Tensor ThreadGroup::do_reduce_scatter(
    const at::Tensor& input,
    int64_t dim,
    ReduceOp op) {
  const PlainTensors guard;
  Call call;
  call.kind = CollectiveKind::kReduceScatter;
  call.inputs = {published(input)};
  call.dim = dim;
  call.op = op;
  return meet(call, [&] {
    const Interval mine = chunk(input.size(dim), size(), rank());
    std::vector<at::Tensor> parts = all_inputs(input);
    for (at::Tensor& part : parts) {
      part = part.narrow(dim, mine.begin, mine.size());
    }
    at::Tensor out = empty(parts.front().sizes(), input);
    reduce_into(out, parts, op);
    finish_device_work(out);
    return out;
  });
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
  const PlainTensors guard;
  Call call;
  call.kind = CollectiveKind::kBroadcast;
  // Only the root's contents are read.
  call.inputs = {rank() == root ? published(input) : input};
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

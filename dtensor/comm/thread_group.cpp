// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dtensor/comm/plain_tensors_impl.h>
#include <dtensor/comm/reduce_impl.h>
#include <dtensor/comm/reduce_loops_impl.h>
#include <dtensor/comm/thread_group_impl.h>
#include <dtensor/error.h>
#include <dtensor/layout/shard_math.h>

namespace dtensor::detail {
namespace {

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

// Results are written block by block to all members, while they are near.
constexpr int64_t kBlockBytes = 1 << 18;

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

template <typename Combine>
std::optional<at::Tensor> ThreadGroup::meet_small(
    const Signature& signature,
    const at::Tensor* given,
    at::IntArrayRef sizes,
    const Combine& combine) {
  if (signature.small == 0 || !channel_->assumed(rank()).empty()) {
    return std::nullopt;
  }
  return in_place(
      to_string(signature.kind), [&]() -> std::optional<at::Tensor> {
        channel_->post(rank(), label(), signature, given);
        // While the others come.
        const at::Tensor out = at::detail::empty_cpu(sizes, signature.dtype);
        if (!channel_->met_small(rank(), label(), signature)) {
          return std::nullopt;
        }
        c10::SmallVector<const void*, 8> members;
        for (int64_t member = 0; member < size(); ++member) {
          members.push_back(channel_->posted(rank(), member));
        }
        combine(members, out);
        return out;
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
  meet(call, [&] {
    try {
      reduce_part();
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

// Together the members read every input once and write every output once.
void ThreadGroup::reduce_part() {
  const Call& call = channel_->call(rank());
  const at::Tensor flat = call.output.view({-1});
  const Interval mine = chunk(flat.numel(), size(), rank());
  if (mine.size() == 0 || reduce_part_in_loop(mine)) {
    return;
  }
  const auto inputs = all_inputs(flat);
  const int64_t block = flat.is_cpu() ? kBlockBytes / flat.element_size()
                                      : std::max<int64_t>(mine.size(), 1);
  for (int64_t begin = mine.begin; begin < mine.end; begin += block) {
    const int64_t length = std::min(block, mine.end - begin);
    std::vector<at::Tensor> parts;
    for (const at::Tensor& input : inputs) {
      parts.push_back(input.view({-1}).narrow(0, begin, length));
    }
    const at::Tensor part = flat.narrow(0, begin, length);
    reduce_into(part, parts, call.op);
    for (int64_t member = 0; member < size(); ++member) {
      if (member != rank()) {
        channel_->call(member)
            .output.view({-1})
            .narrow(0, begin, length)
            .copy_(part);
      }
    }
  }
}

// False if there is no loop for these tensors.
bool ThreadGroup::reduce_part_in_loop(const Interval& mine) {
  const Call& call = channel_->call(rank());
  const at::ScalarType dtype = call.output.scalar_type();
  const auto ranks = static_cast<size_t>(size());
  if (!has_loop(dtype, call.op)) {
    return false;
  }
  c10::SmallVector<const std::byte*, 8> inputs;
  c10::SmallVector<std::byte*, 8> outputs;
  for (const Call* peer : channel_->calls()) {
    if (!is_plain(peer->input()) || !is_plain(peer->output)) {
      return false;
    }
    inputs.push_back(
        static_cast<const std::byte*>(peer->input().const_data_ptr()));
    outputs.push_back(static_cast<std::byte*>(peer->output.data_ptr()));
  }
  const int64_t item = call.output.element_size();
  at::parallel_for(
      mine.begin, mine.end, kBlockBytes / item, [&](int64_t from, int64_t to) {
        constexpr int64_t kNear = 1 << 13;
        for (int64_t begin = from; begin < to; begin += kNear / item) {
          const int64_t length = std::min(kNear / item, to - begin);
          c10::SmallVector<const void*, 8> parts;
          for (const std::byte* input : inputs) {
            parts.push_back(input + begin * item);
          }
          std::byte* const part = outputs[0] + begin * item;
          reduce_loop(dtype, call.op, parts, part, length);
          for (size_t member = 1; member < ranks; ++member) {
            std::memcpy(
                outputs[member] + begin * item,
                part,
                static_cast<size_t>(length * item));
          }
        }
      });
  return true;
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
  return meet(call, [&] {
    const auto parts = all_inputs(input);
    std::vector<int64_t> total = input.sizes().vec();
    total[static_cast<size_t>(dim)] = 0;
    for (const at::Tensor& part : parts) {
      total[static_cast<size_t>(dim)] += part.size(dim);
    }
    at::Tensor out = empty(total, input);
    at::cat_out(out, parts, dim);
    finish_device_work(out);
    return out;
  });
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
  return meet(call, [&] {
    std::vector<at::Tensor> parts = all_inputs(input);
    for (at::Tensor& part : parts) {
      part = part.narrow(dim, mine.begin, mine.size());
    }
    at::Tensor out = empty(sizes, input);
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

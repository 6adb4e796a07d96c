// SPDX-License-Identifier: BSD-3-Clause
// all_reduce and reduce_scatter for threads. Every rank reduces small tensors
// by itself. Larger tensors of an all_reduce are split: each rank reduces one
// chunk and writes it to the outputs of all ranks. In a reduce_scatter, every
// rank reduces its own shard.
#include <dtensor/comm/threads/thread_backend_impl.h>

#include <ATen/Parallel.h>
#include <dtensor/comm/backend/reduce_impl.h>
#include <dtensor/comm/group/shard_buffers_impl.h>
#include <dtensor/comm/threads/thread_meeting_impl.h>

#include <algorithm>

namespace dtensor::detail {
namespace {

// Size of a block. Results are copied to all members while they are in the
// cache.
constexpr int64_t kBlockBytes = 1 << 18;

// Returns false if no vectorized loop exists for these tensors.
bool reduce_in_loop(const Calls& calls, const Call& mine, Interval range) {
  const at::ScalarType dtype = mine.out.scalar_type();
  const int64_t item = mine.out.element_size();
  if (!prefers_loop(dtype, mine.op, range.size() * item)) {
    return false;
  }
  c10::SmallVector<const std::byte*, 8> inputs;
  c10::SmallVector<std::byte*, 8> outputs;
  for (const Call* peer : calls) {
    if (!is_plain(peer->input()) || !is_plain(peer->out)) {
      return false;
    }
    inputs.push_back(
        static_cast<const std::byte*>(peer->input().const_data_ptr()));
    outputs.push_back(static_cast<std::byte*>(peer->out.data_ptr()));
  }
  at::parallel_for(
      range.begin,
      range.end,
      kBlockBytes / item,
      [&](int64_t from, int64_t to) {
        constexpr int64_t kCached = 1 << 13;
        for (int64_t begin = from; begin < to; begin += kCached / item) {
          const int64_t length = std::min(kCached / item, to - begin);
          c10::SmallVector<const void*, 8> parts;
          for (const std::byte* input : inputs) {
            parts.push_back(input + begin * item);
          }
          std::byte* const part = outputs[0] + begin * item;
          reduce_loop(dtype, mine.op, parts, part, length);
          for (size_t member = 1; member < outputs.size(); ++member) {
            std::memcpy(
                outputs[member] + begin * item,
                part,
                static_cast<size_t>(length * item));
          }
        }
      });
  return true;
}

void reduce_scatter_small(
    const Signature& signature,
    Published members,
    int64_t rank,
    const at::Tensor& out) {
  const Strips strips(signature);
  const auto ranks = static_cast<int64_t>(members.size());
  const Interval mine = chunk(strips.size, ranks, rank);
  if (!has_loop(signature.dtype, signature.op)) {
    const PlainTensors guard;
    c10::SmallVector<at::Tensor, 8> inputs;
    for (const void* data : members) {
      inputs.push_back(tensor_over(data, signature)
                           .narrow(signature.dim, mine.begin, mine.size()));
    }
    reduce_into(out, inputs, signature.op);
    return;
  }
  const int64_t length = mine.size() * strips.elements;
  c10::SmallVector<const void*, 8> from(members.begin(), members.end());
  for (int64_t row = 0; row < strips.outer; ++row) {
    const int64_t first = (row * strips.size + mine.begin) * strips.elements;
    for (size_t member = 0; member < from.size(); ++member) {
      from[member] = advance(members[member], first * strips.item);
    }
    std::byte* to =
        static_cast<std::byte*>(out.data_ptr()) + row * length * strips.item;
    reduce_loop(signature.dtype, signature.op, from, to, length);
  }
}

} // namespace

void reduce_range(const Calls& calls, int64_t member, Interval range) {
  const Call& mine = call_of(calls, member);
  if (range.size() == 0 || reduce_in_loop(calls, mine, range)) {
    return;
  }
  const at::Tensor flat = mine.out.view({-1});
  const auto inputs = inputs_on(flat.device(), calls);
  const int64_t block =
      flat.is_cpu() ? kBlockBytes / flat.element_size() : range.size();
  for (int64_t begin = range.begin; begin < range.end; begin += block) {
    const int64_t length = std::min(block, range.end - begin);
    std::vector<at::Tensor> parts;
    for (const at::Tensor& input : inputs) {
      parts.push_back(input.view({-1}).narrow(0, begin, length));
    }
    const at::Tensor part = flat.narrow(0, begin, length);
    reduce_into(part, parts, mine.op);
    for (const Call* call : calls) {
      if (call != &mine) {
        call->out.view({-1}).narrow(0, begin, length).copy_(part);
      }
    }
  }
}

at::Tensor ThreadBackend::all_reduce(Collective& c) {
  const at::Tensor& input = c.input();
  Signature signature = sign(CollectiveKind::kAllReduce, input);
  signature.op = c.op;
  auto small = try_fast_path(
      signature,
      input,
      input.sizes(),
      [&](Published members, const at::Tensor& out) {
        reduce_memory(
            signature.dtype, c.op, members, out.data_ptr(), out.numel());
      });
  if (small) {
    return *std::move(small);
  }
  const PlainTensors guard;
  Call call(std::move(c));
  call.inputs[0] = call.input().contiguous();
  call.out = empty_result(call.input().sizes(), call.input().options());
  finish_device_work(call.out); // peers write to it
  meet(call, [&] {
    try {
      // Together the members read each input and write each output once.
      reduce_range(
          channel_->calls(),
          rank(),
          chunk(call.input().numel(), size(), rank()));
      finish_device_work(call.out);
    } catch (...) {
      channel_->fail(rank());
      throw;
    }
  });
  noting_place(call.name(), [&] {
    if (channel_->any_failed(rank())) {
      throw RankEnded(); // the failed member throws the reason
    }
  });
  return call.out;
}

at::Tensor reduce_scattered(const Calls& calls, int64_t member) {
  const Call& mine = call_of(calls, member);
  const auto parts = shards_for(calls, member, mine.dim, mine.sizes);
  at::Tensor out = output_of(mine, parts.front().sizes());
  reduce_into(out, parts, mine.op);
  finish_device_work(out);
  return out;
}

at::Tensor ThreadBackend::reduce_scatter(Collective& c) {
  const at::Tensor& input = c.input();
  const Interval mine =
      shard_range_of(input.size(c.dim), size(), c.sizes, rank());
  Signature signature = c.sizes.empty()
      ? sign(CollectiveKind::kReduceScatter, input)
      : Signature(); // a signature does not hold shard sizes
  signature.op = c.op;
  signature.dim = static_cast<uint8_t>(c.dim);
  at::DimVector sizes(input.sizes());
  sizes[static_cast<size_t>(c.dim)] = mine.size();
  auto small = try_fast_path(
      signature, input, sizes, [&](Published members, const at::Tensor& out) {
        reduce_scatter_small(signature, members, rank(), out);
      });
  if (small) {
    return *std::move(small);
  }
  return meet_plain(c, [&](const Call&) {
    return reduce_scattered(channel_->calls(), rank());
  });
}

} // namespace dtensor::detail

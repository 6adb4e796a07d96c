// SPDX-License-Identifier: BSD-3-Clause
// The collectives of a ThreadGroup that compute.
#include <ATen/Parallel.h>
#include <dtensor/comm/reduce_impl.h>
#include <dtensor/comm/reduce_loops_impl.h>
#include <dtensor/comm/thread_meeting_impl.h>

#include <algorithm>

namespace dtensor::detail {
namespace {

// Results are written block by block to all members, while they are near.
constexpr int64_t kBlockBytes = 1 << 18;
// From here on tensor operators, whose instructions for bf16 are newer, are
// faster than our loops although they take more steps to start.
constexpr int64_t kLongBF16Bytes = 1 << 15;

} // namespace

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
  const int64_t item = call.output.element_size();
  const bool long_bf16 =
      dtype == at::kBFloat16 && mine.size() * item > kLongBF16Bytes;
  if (!has_loop(dtype, call.op) || long_bf16) {
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

} // namespace dtensor::detail

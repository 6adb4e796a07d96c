// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/Parallel.h>
#include <ATen/ops/cat.h>
#include <dtensor/comm/threads/combine_impl.h>
#include <dtensor/comm/threads/reduce_impl.h>
#include <dtensor/comm/threads/reduce_loops_impl.h>
#include <dtensor/comm/threads/small_impl.h>

#include <algorithm>

namespace dtensor::detail {
namespace {

// Results are written block by block to all members, while they are near.
constexpr int64_t kBlockBytes = 1 << 18;
// From here on tensor operators, whose instructions for bf16 are newer, are
// faster than our loops although they take more steps to start.
constexpr int64_t kLongBF16Bytes = 1 << 15;

const Call& call_of(const Calls& calls, int64_t member) {
  return *calls[static_cast<size_t>(member)];
}

std::vector<at::Tensor> inputs_on(
    const at::Device& device,
    const Calls& calls) {
  std::vector<at::Tensor> result;
  result.reserve(calls.size());
  for (const Call* call : calls) {
    const at::Tensor& theirs = call->input();
    result.push_back(theirs.device() == device ? theirs : theirs.to(device));
  }
  return result;
}

// What every member has of the part along `dim` that `member` is to get, on its
// device.
std::vector<at::Tensor>
parts_for(const Calls& calls, int64_t member, int64_t dim) {
  const at::Tensor& mine = call_of(calls, member).input();
  const Interval kept =
      chunk(mine.size(dim), static_cast<int64_t>(calls.size()), member);
  std::vector<at::Tensor> result;
  result.reserve(calls.size());
  for (const Call* call : calls) {
    result.push_back(
        call->input().narrow(dim, kept.begin, kept.size()).to(mine.device()));
  }
  return result;
}

at::Tensor output_of(const Call& call, at::IntArrayRef sizes) {
  return call.output.defined() ? call.output : empty(sizes, call.input());
}

at::Tensor concatenated(
    const Call& mine,
    const std::vector<at::Tensor>& parts,
    int64_t dim) {
  Sizes sizes(parts.front().sizes());
  auto& total = sizes[static_cast<size_t>(dim)];
  total = 0;
  for (const at::Tensor& part : parts) {
    total += part.size(dim);
  }
  at::Tensor out = output_of(mine, sizes);
  at::cat_out(out, parts, dim);
  finish_device_work(out);
  return out;
}

// False if there is no loop for these tensors.
bool reduce_in_loop(const Calls& calls, const Call& mine, Interval range) {
  const at::ScalarType dtype = mine.output.scalar_type();
  const int64_t item = mine.output.element_size();
  const bool long_bf16 =
      dtype == at::kBFloat16 && range.size() * item > kLongBF16Bytes;
  if (!has_loop(dtype, mine.op) || long_bf16) {
    return false;
  }
  c10::SmallVector<const std::byte*, 8> inputs;
  c10::SmallVector<std::byte*, 8> outputs;
  for (const Call* peer : calls) {
    if (!is_plain(peer->input()) || !is_plain(peer->output)) {
      return false;
    }
    inputs.push_back(
        static_cast<const std::byte*>(peer->input().const_data_ptr()));
    outputs.push_back(static_cast<std::byte*>(peer->output.data_ptr()));
  }
  at::parallel_for(
      range.begin,
      range.end,
      kBlockBytes / item,
      [&](int64_t from, int64_t to) {
        constexpr int64_t kNear = 1 << 13;
        for (int64_t begin = from; begin < to; begin += kNear / item) {
          const int64_t length = std::min(kNear / item, to - begin);
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

} // namespace

at::Tensor gathered(const Calls& calls, int64_t member) {
  const Call& mine = call_of(calls, member);
  return concatenated(mine, inputs_on(mine.input().device(), calls), mine.dim);
}

at::Tensor exchanged(const Calls& calls, int64_t member) {
  const Call& mine = call_of(calls, member);
  return concatenated(mine, parts_for(calls, member, mine.shard_dim), mine.dim);
}

at::Tensor reduce_scattered(const Calls& calls, int64_t member) {
  const Call& mine = call_of(calls, member);
  const auto parts = parts_for(calls, member, mine.dim);
  at::Tensor out = output_of(mine, parts.front().sizes());
  reduce_into(out, parts, mine.op);
  finish_device_work(out);
  return out;
}

void reduce_range(const Calls& calls, int64_t member, Interval range) {
  const Call& mine = call_of(calls, member);
  if (range.size() == 0 || reduce_in_loop(calls, mine, range)) {
    return;
  }
  const at::Tensor flat = mine.output.view({-1});
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
        call->output.view({-1}).narrow(0, begin, length).copy_(part);
      }
    }
  }
}

} // namespace dtensor::detail

// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/threads/thread_meeting_impl.h>

#include <ATen/ops/cat.h>
#include <dtensor/comm/group/shard_buffers_impl.h>

#include <algorithm>

namespace dtensor::detail {

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

bool are_all(SizesRef sizes, int64_t size) {
  return std::ranges::all_of(sizes, [&](int64_t each) { return each == size; });
}

std::vector<at::Tensor>
shards_for(const Calls& calls, int64_t member, int64_t dim, SizesRef sizes) {
  const at::Tensor& mine = call_of(calls, member).input();
  const Interval kept = shard_range_of(
      mine.size(dim), static_cast<int64_t>(calls.size()), sizes, member);
  std::vector<at::Tensor> result;
  result.reserve(calls.size());
  for (const Call* call : calls) {
    result.push_back(
        call->input().narrow(dim, kept.begin, kept.size()).to(mine.device()));
  }
  return result;
}

at::Tensor output_of(const Call& call, at::IntArrayRef sizes) {
  return call.out.defined() ? call.out
                            : empty_result(sizes, call.input().options());
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

} // namespace dtensor::detail

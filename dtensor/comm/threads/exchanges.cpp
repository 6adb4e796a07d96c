// SPDX-License-Identifier: BSD-3-Clause
// all_gather and all_to_all for threads: every rank copies its shards from the
// inputs of all ranks.
#include <dtensor/comm/threads/thread_backend_impl.h>

#include <ATen/ops/cat.h>
#include <dtensor/comm/group/shard_buffers_impl.h>
#include <dtensor/comm/threads/thread_meeting_impl.h>

#include <algorithm>
#include <limits>

namespace dtensor::detail {
namespace {

void gather_small(
    const Signature& signature,
    Published members,
    const at::Tensor& out) {
  const Strips strips(signature);
  const int64_t bytes = strips.size * strips.elements * strips.item;
  auto* to = static_cast<std::byte*>(out.data_ptr());
  if (bytes == 0) {
    return;
  }
  for (int64_t row = 0; row < strips.outer; ++row) {
    for (const void* data : members) {
      std::memcpy(to, advance(data, row * bytes), static_cast<size_t>(bytes));
      to += bytes;
    }
  }
}

// Stands in for a dimension, because the inputs already are one tensor per
// member.
constexpr uint8_t kOfParts = std::numeric_limits<uint8_t>::max();

void exchange_small(
    const Signature& signature,
    Published members,
    int64_t rank,
    const at::Tensor& out) {
  const PlainTensors guard;
  const int64_t shard_dim = signature.root;
  const int64_t size = signature.sizes[signature.root];
  const auto ranks = static_cast<int64_t>(members.size());
  const Interval kept = chunk(size, ranks, rank);
  std::vector<at::Tensor> parts;
  for (const void* data : members) {
    parts.push_back(tensor_over(data, signature)
                        .narrow(shard_dim, kept.begin, kept.size()));
  }
  at::Tensor to = out;
  at::cat_out(to, parts, signature.dim);
}

// Returns the signature of `parts` if they have equal shapes and together fit
// into kSmallBytes. Otherwise returns a signature that is not small. `shapes`:
// the expected shapes of the received tensors, if known.
Signature sign_parts(
    c10::ArrayRef<at::Tensor> parts,
    c10::ArrayRef<Sizes> shapes) {
  const at::Tensor& first = parts.front();
  Signature result = sign(CollectiveKind::kAllToAll, first);
  const bool fits = first.nbytes() * parts.size() <= kSmallBytes &&
      std::ranges::all_of(parts, [&](const at::Tensor& part) {
                      return part.sizes() == first.sizes() && is_plain(part) &&
                          part.is_contiguous();
                    });
  const bool expected = std::ranges::all_of(shapes, [&](const Sizes& shape) {
    return first.sizes() == at::IntArrayRef(shape);
  });
  if (!fits || !expected) {
    return {};
  }
  result.dim = kOfParts;
  return result;
}

// Returns the tensors that all members send to `member`, on its device.
std::vector<at::Tensor> tensors_sent_to(const Calls& calls, int64_t member) {
  const at::Device device = call_of(calls, member).input().device();
  std::vector<at::Tensor> parts;
  for (const Call* call : calls) {
    parts.push_back(call->inputs[static_cast<size_t>(member)].to(device));
  }
  return parts;
}

} // namespace

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

at::Tensor gathered(const Calls& calls, int64_t member) {
  const Call& mine = call_of(calls, member);
  return concatenated(mine, inputs_on(mine.input().device(), calls), mine.dim);
}

at::Tensor ThreadBackend::all_gather(Collective& c) {
  const at::Tensor& input = c.input();
  Signature signature = are_all(c.sizes, input.size(c.dim))
      ? sign(CollectiveKind::kAllGather, input)
      : Signature(); // a signature holds only one size
  signature.dim = static_cast<uint8_t>(c.dim);
  at::DimVector sizes(input.sizes());
  sizes[static_cast<size_t>(c.dim)] *= size();
  auto small = try_fast_path(
      signature, input, sizes, [&](Published members, const at::Tensor& out) {
        gather_small(signature, members, out);
      });
  if (small) {
    return *std::move(small);
  }
  return meet_plain(
      c, [&](const Call&) { return gathered(channel_->calls(), rank()); });
}

at::Tensor exchanged(const Calls& calls, int64_t member) {
  const Call& mine = call_of(calls, member);
  return concatenated(
      mine,
      mine.shard_dim < 0 ? tensors_sent_to(calls, member)
                         : shards_for(calls, member, mine.shard_dim, {}),
      mine.dim);
}

at::Tensor ThreadBackend::shard_dim_alltoall(Collective& c) {
  const at::Tensor& input = c.input();
  Signature signature = are_all(c.sizes, input.size(c.dim))
      ? sign(CollectiveKind::kAllToAll, input)
      : Signature();
  signature.dim = static_cast<uint8_t>(c.dim);
  signature.root = static_cast<uint16_t>(c.shard_dim);
  at::DimVector sizes(input.sizes());
  sizes[static_cast<size_t>(c.dim)] *= size();
  auto& sharded = sizes[static_cast<size_t>(c.shard_dim)];
  sharded = chunk(sharded, size(), rank()).size();
  auto small = try_fast_path(
      signature, input, sizes, [&](Published members, const at::Tensor& out) {
        exchange_small(signature, members, rank(), out);
      });
  if (small) {
    return *std::move(small);
  }
  return meet_plain(
      c, [&](const Call&) { return exchanged(channel_->calls(), rank()); });
}

std::optional<ThreadBackend::Tensors> ThreadBackend::exchange_small_parts(
    const Collective& c) {
  const Signature signature = sign_parts(c.inputs, c.shapes);
  const auto make = [&] {
    Tensors parts(c.inputs.size());
    for (at::Tensor& part : parts) {
      part = empty_small(c.input().sizes(), signature.dtype);
    }
    return parts;
  };
  const auto fill = [&](Published members, const Tensors& out) {
    const size_t bytes = c.input().nbytes();
    for (size_t member = 0; member < members.size() && bytes > 0; ++member) {
      std::memcpy(
          out[member].data_ptr(),
          advance(members[member], rank() * static_cast<int64_t>(bytes)),
          bytes);
    }
  };
  return try_fast_path(signature, c.inputs, make, fill);
}

ThreadBackend::Tensors ThreadBackend::all_to_all(Collective& c) {
  if (auto small = exchange_small_parts(c)) {
    return *std::move(small);
  }
  return meet_plain(c, [&](const Call& call) {
    const at::Device device = call.input().device();
    Tensors result;
    for (int64_t member = 0; member < size(); ++member) {
      const auto& theirs = channel_->call(member).inputs;
      result.push_back(copy_to(device, theirs[static_cast<size_t>(rank())]));
    }
    finish_device_work(result.front());
    return result;
  });
}

} // namespace dtensor::detail

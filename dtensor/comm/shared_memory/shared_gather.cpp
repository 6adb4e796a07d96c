// SPDX-License-Identifier: BSD-3-Clause
// all_gather: every member publishes its tensor and copies those of all
// members. If all results are in arenas, a member writes a long tensor directly
// into the results of all members instead.
#include <dtensor/comm/shared_memory/shared_backend_impl.h>

#include <dtensor/comm/group/group_checks_impl.h>

#include <c10/util/accumulate.h>
#include <dtensor/comm/group/shard_buffers_impl.h>
#include <dtensor/comm/shared_memory/shared_arena_impl.h>

namespace dtensor::detail {
namespace {

// Size from which one copy less is worth one more stage.
constexpr int64_t kLongBytes = 64 << 10;

} // namespace

at::Tensor SharedBackend::all_gather(const Collective& c) {
  const at::Tensor& input = c.input();
  return collective(c.kind, [&] {
    const Sizes known = known_sizes(c);
    const int64_t total = c10::sum_integers(known);
    check_gathered_size(c, label(), total);
    const Sizes sizes = resized(input.sizes(), c.dim, total);
    const bool is_long = bytes_of(sizes, input.dtype().itemsize()) >=
        static_cast<size_t>(kLongBytes * size());
    const at::Tensor shown =
        is_long ? results_->empty(sizes, input.scalar_type()) : at::Tensor();
    at::Tensor out =
        shown.defined() ? shown : empty_result(sizes, input.options());
    SharedSignature signature = sign(c.kind, input.scalar_type(), known);
    signature.dim = static_cast<uint8_t>(c.dim);
    signature.sizes_hash ^= sign(c.kind, input.scalar_type(), sizes).sizes_hash;
    signature.numel = out.numel();
    const Targets targets = split_rows<std::byte>(out, c.dim, known);
    if (!is_long ||
        !gather_to_all(signature, all_of(input), targets, shown, c)) {
      gather_rows(signature, all_of(input), targets, c);
    }
    return out;
  });
}

// Gathers the members' sizes in one stage, without a tensor.
Sizes SharedBackend::known_sizes(const Collective& c) {
  if (!c.sizes.empty()) {
    return c.sizes;
  }
  const int64_t mine = c.input().size(c.dim);
  SharedSignature signature = sign(CollectiveKind::kAllGather, at::kLong, {});
  signature.numel = -1; // unique to this call
  std::memcpy(channel_->buffer(Buffer::kNotice, rank()), &mine, sizeof(mine));
  channel_->post(signature);
  meet(0, c);
  Sizes sizes;
  for (int64_t member = 0; member < size(); ++member) {
    int64_t theirs = 0;
    std::memcpy(
        &theirs, channel_->buffer(Buffer::kNotice, member), sizeof(theirs));
    sizes.push_back(theirs);
  }
  channel_->next();
  check_remote_sizes(members(), sizes);
  return sizes;
}

bool SharedBackend::gather_to_all(
    const SharedSignature& signature,
    const Source& mine,
    const Targets& targets,
    const at::Tensor& shown,
    const Collective& c) {
  PeerResults results(*channel_);
  results.show(*results_, shown);
  channel_->post(signature);
  meet(0, c);
  results.find();
  channel_->next();
  if (!results.all_in_arenas()) {
    return false;
  }
  const Target& own = targets[static_cast<size_t>(rank())];
  const std::byte* const begin = results.of(rank());
  for (int64_t member = 0; member < size(); ++member) {
    Target theirs = own;
    theirs.data = results.of(member) + (own.data - begin);
    copy(mine, theirs);
  }
  channel_->post();
  channel_->meet();
  channel_->next();
  return true;
}

void SharedBackend::gather_rows(
    const SharedSignature& signature,
    const Source& mine,
    const Targets& targets,
    const Collective& c) {
  const int64_t longest = longest_of(targets);
  const Buffer buffer =
      longest <= kNoticeBytes ? Buffer::kNotice : Buffer::kBlock;
  const int64_t step = channel_->bytes(buffer);
  for (int64_t at = 0; at == 0 || at < longest; at += step) {
    const Interval range = piece(mine, at, step);
    copy(mine, range, channel_->buffer(buffer, rank()));
    post(at, signature);
    meet(at, c);
    for (int64_t member = 0; member < size(); ++member) {
      const Target& target = targets[static_cast<size_t>(member)];
      copy(channel_->buffer(buffer, member), target, piece(target, at, step));
    }
    channel_->next();
  }
}

} // namespace dtensor::detail

// SPDX-License-Identifier: BSD-3-Clause
// all_reduce and reduce_scatter.
//
// For a short tensor, every member publishes its input and reduces all inputs
// by itself. A longer tensor is processed in blocks, and each member reduces
// one slice of every block. In one stage, a member publishes the slices of a
// block that the others reduce. Once all have done so, it reduces its own
// slice. It writes the result directly to the members with results in arenas,
// and into its next buffer for the others. Each additional block therefore
// costs one more stage.
#include <dtensor/comm/shared_memory/shared_backend_impl.h>

#include <ATen/ops/empty.h>
#include <dtensor/comm/backend/reduce_impl.h>
#include <dtensor/comm/group/shard_buffers_impl.h>
#include <dtensor/comm/shared_memory/shared_arena_impl.h>

#include <algorithm>

namespace dtensor::detail {
namespace {

// A tensor of `bytes` bytes as blocks, each with one slice per member.
struct Blocks {
  int64_t bytes;
  int64_t members;
  int64_t lane; // bytes of the longest slice

  int64_t count() const {
    const int64_t block = lane * members;
    return (bytes + block - 1) / block;
  }
  bool has(int64_t block) const {
    return block >= 0 && block < count();
  }
  Interval part(int64_t block, int64_t member) const {
    const int64_t begin = block * lane * members;
    const int64_t rest = std::min(bytes - begin, lane * members);
    const int64_t even = (rest + members - 1) / members;
    const int64_t share = std::min(
        (even + kSliceAlignment - 1) / kSliceAlignment * kSliceAlignment, lane);
    return {
        begin + std::min(rest, member * share),
        begin + std::min(rest, (member + 1) * share)};
  }
};

SharedSignature
reduction(CollectiveKind kind, const at::Tensor& input, ReduceOp op) {
  SharedSignature result = sign(kind, input.scalar_type(), input.sizes());
  result.op = op;
  result.numel = input.numel();
  return result;
}

// One member's side of an all_reduce by blocks.
class BlockedAllReduce {
 public:
  BlockedAllReduce(
      const SharedChannel& channel,
      const at::Tensor& input,
      const at::Tensor& out,
      ReduceOp op)
      : channel_(channel),
        results_(channel),
        dtype_(input.scalar_type()),
        op_(op),
        from_(all_of(input).data),
        to_(all_of_result(out).data),
        blocks_{
            static_cast<int64_t>(input.nbytes()),
            channel.size(),
            channel.bytes(SharedChannel::Buffer::kBlock) / channel.size() /
                kSliceAlignment * kSliceAlignment} {}

  int64_t blocks() const {
    return blocks_.count();
  }

  /// Addresses of all members' results. They are published in the first stage,
  /// and read after it.
  PeerResults& results() {
    return results_;
  }

  void show_terms(int64_t block) const {
    each_other(block, [&](int64_t member, Interval part) {
      copy_bytes(
          lane(channel_.rank(), member), from_ + part.begin, part.size());
    });
  }

  // Reduces this member's slice of the block. For members without a result in
  // an arena, stores the slice in the next buffer. There it uses the lane from
  // this member to itself, which is otherwise unused.
  void reduce(int64_t block) const {
    if (!blocks_.has(block)) {
      return;
    }
    const Interval part = blocks_.part(block, channel_.rank());
    reduce_part(part);
    for (int64_t member = 0; member < channel_.size(); ++member) {
      std::byte* const theirs = results_.of(member);
      if (theirs != nullptr && member != channel_.rank()) {
        copy_bytes(theirs + part.begin, to_ + part.begin, part.size());
      }
    }
    if (!results_.all_in_arenas()) {
      copy_bytes(
          channel_.next_buffer() + channel_.rank() * blocks_.lane,
          to_ + part.begin,
          part.size());
    }
  }

  void take_results(int64_t block) const {
    if (results_.of(channel_.rank()) == nullptr) {
      each_other(block, [&](int64_t member, Interval part) {
        copy_bytes(to_ + part.begin, lane(member, member), part.size());
      });
    }
  }

 private:
  template <typename Fn>
  void each_other(int64_t block, const Fn& fn) const {
    if (!blocks_.has(block)) {
      return;
    }
    for (int64_t member = 0; member < channel_.size(); ++member) {
      if (member != channel_.rank()) {
        fn(member, blocks_.part(block, member));
      }
    }
  }
  std::byte* lane(int64_t writer, int64_t reader) const {
    return channel_.buffer(SharedChannel::Buffer::kBlock, writer) +
        reader * blocks_.lane;
  }
  void reduce_part(Interval part) const {
    c10::SmallVector<const void*, 8> terms;
    for (int64_t member = 0; member < channel_.size(); ++member) {
      terms.push_back(
          member == channel_.rank() ? from_ + part.begin
                                    : lane(member, channel_.rank()));
    }
    const auto item = static_cast<int64_t>(c10::elementSize(dtype_));
    reduce_memory(dtype_, op_, terms, to_ + part.begin, part.size() / item);
  }

  const SharedChannel& channel_;
  PeerResults results_;
  at::ScalarType dtype_;
  ReduceOp op_;
  const std::byte* from_;
  std::byte* to_;
  Blocks blocks_;
};

// Contiguous rows: the given rows, or a copy if they are strided.
struct Packed {
  explicit Packed(const Source& from) : rows(from) {
    if (!from.is_dense()) {
      memory = at::empty({from.bytes()}, at::kByte);
      copy(from, {0, from.bytes()}, all_of_result(memory).data);
      rows = all_of(memory);
    }
  }
  Source rows;
  at::Tensor memory;
};

} // namespace

at::Tensor SharedBackend::all_reduce(const Collective& c) {
  return collective(c.kind, [&] {
    return c.input_bytes() <= kNoticeBytes ? reduce_in_notice(c)
                                           : reduce_in_parts(c);
  });
}

at::Tensor SharedBackend::reduce_in_notice(const Collective& c) {
  const at::Tensor& input = c.input();
  const Source mine = all_of(input);
  copy_bytes(
      channel_->buffer(Buffer::kNotice, rank()), mine.data, mine.bytes());
  post(0, reduction(c.kind, input, c.op));
  // Allocating the result overlaps with the arrival of the others.
  at::Tensor out = empty_result(input.sizes(), input.options());
  meet(0, c);
  c10::SmallVector<const void*, 8> terms;
  for (int64_t member = 0; member < size(); ++member) {
    terms.push_back(channel_->buffer(Buffer::kNotice, member));
  }
  reduce_memory(
      input.scalar_type(), c.op, terms, out.data_ptr(), input.numel());
  channel_->next();
  return out;
}

at::Tensor SharedBackend::reduce_in_parts(const Collective& c) {
  const at::Tensor& input = c.input();
  const at::Tensor shown = results_->empty(input.sizes(), input.scalar_type());
  at::Tensor out =
      shown.defined() ? shown : empty_result(input.sizes(), input.options());
  const auto signature = reduction(c.kind, input, c.op);
  BlockedAllReduce parts(*channel_, input, out, c.op);
  // Stage `block` publishes and reduces block `block`, and collects the results
  // of the previous block. The last stage only collects.
  for (int64_t block = 0; block <= parts.blocks(); ++block) {
    if (block == 0) {
      parts.results().show(*results_, shown);
    }
    parts.show_terms(block);
    post(block, signature);
    meet(block, c);
    if (block == 0) {
      parts.results().find(c.input_bytes());
    }
    parts.reduce(block);
    parts.take_results(block - 1);
    channel_->next();
  }
  return out;
}

at::Tensor SharedBackend::reduce_scatter(const Collective& c) {
  const at::Tensor& input = c.input();
  const Sizes sizes =
      c.sizes.empty() ? chunk_sizes(input.size(c.dim), size()) : c.sizes;
  return collective(c.kind, [&] {
    const Sources parts = split_rows<const std::byte>(input, c.dim, sizes);
    at::Tensor out = empty_result(
        resized(input.sizes(), c.dim, sizes[static_cast<size_t>(rank())]),
        input.options());
    SharedSignature signature = reduction(c.kind, input, c.op);
    signature.dim = static_cast<uint8_t>(c.dim);
    signature.sizes_hash ^= sign(c.kind, input.scalar_type(), sizes).sizes_hash;
    reduce_parts(signature, parts, out, c);
    return out;
  });
}

void SharedBackend::reduce_parts(
    const SharedSignature& signature,
    const Sources& parts,
    const at::Tensor& out,
    const Collective& c) {
  const int64_t longest = longest_of(parts);
  const Buffer buffer =
      longest <= lane(Buffer::kNotice) ? Buffer::kNotice : Buffer::kBlock;
  const int64_t step = lane(buffer);
  const Packed mine(parts[static_cast<size_t>(rank())]);
  for (int64_t at = 0; at == 0 || at < longest; at += step) {
    for (int64_t member = 0; member < size(); ++member) {
      const Source& part = parts[static_cast<size_t>(member)];
      if (member != rank()) {
        copy(part, piece(part, at, step), lane_of(buffer, rank(), member));
      }
    }
    post(at, signature);
    meet(at, c);
    const Interval range = piece(mine.rows, at, step);
    c10::SmallVector<const void*, 8> terms;
    for (int64_t member = 0; member < size(); ++member) {
      terms.push_back(
          member == rank() ? mine.rows.data + range.begin
                           : lane_of(buffer, member, rank()));
    }
    reduce_memory(
        out.scalar_type(),
        signature.op,
        terms,
        all_of_result(out).data + range.begin,
        range.size() / out.element_size());
    channel_->next();
  }
}

} // namespace dtensor::detail

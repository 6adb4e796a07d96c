// SPDX-License-Identifier: BSD-3-Clause
// Agreement and failure of members, messages, and the collectives without a
// tensor or with a single tensor.
#include <dtensor/comm/shared_memory/shared_backend_impl.h>

#include <dtensor/comm/backend/call_impl.h>
#include <dtensor/comm/backend/decompose_impl.h>
#include <dtensor/comm/backend/message_of_impl.h>
#include <dtensor/comm/backend/packed_call_impl.h>
#include <dtensor/comm/group/group_checks_impl.h>
#include <dtensor/error.h>

#include <algorithm>

namespace dtensor::detail {

SharedSignature
sign(CollectiveKind kind, at::ScalarType dtype, SizesRef sizes) {
  SharedSignature result;
  result.kind = kind;
  result.dtype = dtype;
  for (const int64_t size : sizes) {
    constexpr uint64_t kOdd = 0x9e3779b97f4a7c15; // spreads the bits
    result.sizes_hash =
        (result.sizes_hash + static_cast<uint64_t>(size) + 1) * kOdd;
  }
  return result;
}

InFlight SharedBackend::submit(Collective&& c) {
  if (c.out.defined()) {
    const at::Tensor out = std::move(c.out);
    return submit(std::move(c)).into(out);
  }
  check_cpu(c);
  switch (c.kind) {
    case CollectiveKind::kAllReduce:
      return all_reduce(c);
    case CollectiveKind::kAllGather:
      return all_gather(c);
    case CollectiveKind::kReduceScatter:
      return reduce_scatter(c);
    case CollectiveKind::kAllToAll:
      if (!c.received.empty()) {
        return exchange_buffer(c);
      }
      if (c.shard_dim >= 0) {
        return shard_dim_alltoall(c);
      }
      return all_to_all(c);
    case CollectiveKind::kBroadcast:
      return broadcast(c);
    case CollectiveKind::kSend:
      collective(c.kind, [&] { mail_.send(c.input(), c.root, c.tag); });
      return CollectiveResult();
    case CollectiveKind::kRecv:
      return recv(c);
    case CollectiveKind::kBarrier:
      barrier(c);
      return CollectiveResult();
    default:
      return decompose(std::move(c), *this, [this](Collective&& primitive) {
        return submit(std::move(primitive));
      });
  }
}

void SharedBackend::check_cpu(const Collective& c) const {
  const at::Tensor& tensor = c.example();
  DTENSOR_CHECK_NOT_IMPLEMENTED(
      !tensor.defined() || tensor.device().is_cpu(),
      "[{}] shared memory supports only CPU tensors: got one on {} on \"{}\". "
      "Move it to the CPU, or use another backend.",
      c.name(),
      tensor.device(),
      label());
}

void SharedBackend::report_failure(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    channel_->fail(message_of(error));
  } catch (...) {
    channel_->fail("an exception of unknown type");
  }
}

void SharedBackend::post(int64_t at, const SharedSignature& signature) {
  if (at == 0) {
    // Differs from the factor in sign(), so that an error is not like a size.
    constexpr uint64_t kOdd = 0xc2b2ae3d27d4eb4f;
    SharedSignature mine = signature;
    mine.sizes_hash ^= notes_.errors() * kOdd;
    channel_->post(mine);
  } else {
    channel_->post();
  }
}

void SharedBackend::meet(int64_t at, const Collective& c) {
  channel_->meet();
  if (at == 0 && !channel_->agreed()) {
    disagree(c);
  }
}

// Gathers the members' texts in a stage of its own. A text that does not fit is
// sent as an empty text.
std::vector<std::string> SharedBackend::gather_texts(const std::string& mine) {
  const auto capacity =
      static_cast<size_t>(channel_->bytes(Buffer::kBlock)) - sizeof(size_t);
  std::byte* const block = channel_->buffer(Buffer::kBlock, rank());
  const size_t length = mine.size() <= capacity ? mine.size() : 0;
  std::memcpy(block, &length, sizeof(length));
  std::copy_n(
      mine.begin(), length, reinterpret_cast<char*>(block) + sizeof(length));
  channel_->post();
  channel_->meet();
  std::vector<std::string> texts;
  for (int64_t member = 0; member < size(); ++member) {
    const std::byte* const theirs = channel_->buffer(Buffer::kBlock, member);
    size_t bytes = 0;
    std::memcpy(&bytes, theirs, sizeof(bytes));
    texts.emplace_back(
        reinterpret_cast<const char*>(theirs) + sizeof(bytes),
        std::min(bytes, capacity));
  }
  channel_->next();
  return texts;
}

// Reports a mismatch. All members read the same signatures, so all members call
// this function and exchange their full calls.
void SharedBackend::disagree(const Collective& c) {
  Call call = call_with_tensors(c);
  call.notes = &notes_;
  channel_->next();
  const auto packed = gather_texts(pack(call));
  if (std::ranges::none_of(
          packed, [](const std::string& text) { return text.empty(); })) {
    check_packed_calls(packed, members());
  }
  DTENSOR_THROW_VALUE(
      "[{}] ranks of \"{}\" disagree: their sizes are too long to print. Call "
      "the same collective with the same sizes on every rank.",
      call.name(),
      label());
}

int64_t SharedBackend::lane(Buffer buffer) const {
  constexpr int64_t kAligned = 16; // alignment of the largest element
  const int64_t others = std::max<int64_t>(size() - 1, 1);
  return channel_->bytes(buffer) / others / kAligned * kAligned;
}

void SharedBackend::barrier(const Collective& c) {
  collective(c.kind, [&] {
    post(0, sign(c.kind, at::kByte, {}));
    meet(0, c);
    channel_->next();
  });
}

void SharedBackend::abandon(const std::string& why) {
  channel_->leave(why);
}

at::Tensor SharedBackend::broadcast(const Collective& c) {
  const at::Tensor& input = c.input();
  return collective(c.kind, [&] {
    SharedSignature signature =
        sign(c.kind, input.scalar_type(), input.sizes());
    signature.root = static_cast<int32_t>(c.root);
    signature.numel = input.numel();
    at::Tensor out = empty_result(input.sizes(), input.options());
    const Source mine = all_of(input);
    const Target result = all_of_result(out);
    const Buffer buffer =
        mine.bytes() <= kNoticeBytes ? Buffer::kNotice : Buffer::kBlock;
    const int64_t step = channel_->bytes(buffer);
    for (int64_t at = 0; at == 0 || at < mine.bytes(); at += step) {
      const Interval range = piece(mine, at, step);
      if (rank() == c.root) {
        copy(mine, range, channel_->buffer(buffer, rank()));
      }
      post(at, signature);
      meet(at, c);
      copy(channel_->buffer(buffer, c.root), result, range);
      channel_->next();
    }
    return out;
  });
}

// A shape with more dimensions than an envelope holds arrives one-dimensional.
at::Tensor SharedBackend::recv(const Collective& c) {
  const at::Tensor& like = c.like;
  at::Tensor message =
      collective(c.kind, [&] { return mail_.recv(c.root, c.tag); });
  const bool same_shape = message.sizes() == like.sizes() ||
      (like.dim() > kEnvelopeDims && message.dim() == 1 &&
       message.numel() == like.numel());
  check_received(members(), c.root, like, message, same_shape);
  return message.view(like.sizes());
}

} // namespace dtensor::detail

// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/shared_memory/shared_mail_impl.h>

#include <ATen/ops/empty.h>
#include <dtensor/comm/group/shard_buffers_impl.h>
#include <dtensor/comm/shared_memory/rows_impl.h>
#include <dtensor/error.h>

#include <algorithm>

namespace dtensor::detail {
namespace {

// Calls `copy` for the one or two contiguous runs of `bytes` ring bytes that
// start at `position`.
template <typename Copy>
void in_ring(std::byte* ring, int64_t position, int64_t bytes, Copy copy) {
  const int64_t at = position % kMailBytes;
  const int64_t first = std::min(bytes, kMailBytes - at);
  copy(ring + at, 0, first);
  copy(ring, first, bytes - first);
}

} // namespace

SharedMail::SharedMail(SharedChannel& channel)
    : channel_(channel),
      incoming_(static_cast<size_t>(channel.size())) {
  channel_.set_progress_callback([this] { take_in(); });
}

SharedMail::Envelope SharedMail::envelope_of(
    const at::Tensor& input,
    int64_t tag) {
  Envelope envelope{
      .tag = tag, .dtype = input.scalar_type(), .dims = input.dim()};
  if (input.dim() <= kEnvelopeDims) {
    std::ranges::copy(input.sizes(), envelope.sizes.begin());
  } else {
    envelope.dims = 1;
    envelope.sizes[0] = input.numel();
  }
  return envelope;
}

void SharedMail::send(const at::Tensor& input, int64_t to, int64_t tag) {
  const Envelope envelope = envelope_of(input, tag);
  put(to, &envelope, sizeof(envelope));
  put(to, input.const_data_ptr(), static_cast<int64_t>(input.nbytes()));
}

void SharedMail::put(int64_t to, const void* data, int64_t bytes) {
  const SharedLayout& layout = channel_.layout();
  SharedRing& ring = layout.ring(channel_.rank(), to);
  const auto* from = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const int64_t written = ring.written.load(std::memory_order_relaxed);
    const auto free_bytes = [&] {
      return kMailBytes - (written - ring.read.load(std::memory_order_acquire));
    };
    channel_.wait(
        [&] { return free_bytes() > 0; },
        [&](int64_t member) { return member == to; });
    const int64_t now = std::min(free_bytes(), bytes);
    in_ring(
        layout.ring_data(channel_.rank(), to),
        written,
        now,
        [&](std::byte* place, int64_t begin, int64_t length) {
          copy_bytes(place, from + begin, length);
        });
    ring.written.store(written + now, std::memory_order_release);
    layout.seat(to).mail.fetch_add(1);
    channel_.wake(to);
    from += now;
    bytes -= now;
  }
}

at::Tensor SharedMail::recv(int64_t from, int64_t tag) {
  const Address address{from, tag};
  auto& arrived = arrived_[address];
  channel_.wait(
      [&] {
        take_in();
        return !arrived.empty();
      },
      [&](int64_t member) { return member == from; });
  at::Tensor message = std::move(arrived.front());
  arrived.pop_front();
  if (arrived.empty()) {
    arrived_.erase(address);
  }
  return message;
}

void SharedMail::take_in() {
  const int64_t now = channel_.layout().seat(channel_.rank()).mail.load();
  if (now == seen_) {
    return;
  }
  seen_ = now;
  for (int64_t member = 0; member < channel_.size(); ++member) {
    if (member != channel_.rank()) {
      take_in_from(member);
    }
  }
}

void SharedMail::take_in_from(int64_t from) {
  constexpr int64_t kHead = sizeof(Envelope);
  Incoming& next = incoming_[static_cast<size_t>(from)];
  while (true) {
    if (next.taken < kHead) {
      if (!take_bytes(from, next, &next.envelope, 0, kHead)) {
        return;
      }
      const Envelope& envelope = next.envelope;
      check_envelope(from, envelope);
      next.tensor = at::empty(
          {envelope.sizes.data(), static_cast<size_t>(envelope.dims)},
          envelope.dtype);
    }
    const auto bytes = static_cast<int64_t>(next.tensor.nbytes());
    if (!take_bytes(from, next, next.tensor.data_ptr(), kHead, bytes)) {
      return;
    }
    arrived_[{from, next.envelope.tag}].push_back(std::move(next.tensor));
    next = Incoming();
  }
}

void SharedMail::check_envelope(int64_t from, const Envelope& envelope) const {
  constexpr auto kDtypes = static_cast<int64_t>(at::ScalarType::NumOptions);
  constexpr int64_t kMost = int64_t{1} << 48;
  DTENSOR_CHECK(
      envelope.dims >= 0 && envelope.dims <= kEnvelopeDims &&
          static_cast<int64_t>(envelope.dtype) >= 0 &&
          static_cast<int64_t>(envelope.dtype) < kDtypes &&
          is_valid_shape(
              {envelope.sizes.data(), static_cast<size_t>(envelope.dims)},
              kMost),
      "[recv] malformed message from {}: it has {} and dtype {}. Start all "
      "ranks again.",
      channel_.rank_text(from),
      pluralize(envelope.dims, "dimension"),
      static_cast<int64_t>(envelope.dtype));
}

// Copies the message's bytes [begin, begin + bytes) into `data`, as far as they
// have arrived. Returns true if all bytes have arrived.
bool SharedMail::take_bytes(
    int64_t from,
    Incoming& message,
    void* data,
    int64_t begin,
    int64_t bytes) {
  const SharedLayout& layout = channel_.layout();
  SharedRing& ring = layout.ring(from, channel_.rank());
  auto* to = static_cast<std::byte*>(data) + (message.taken - begin);
  const int64_t read = ring.read.load(std::memory_order_relaxed);
  const int64_t come = ring.written.load(std::memory_order_acquire) - read;
  DTENSOR_CHECK(
      come >= 0 && come <= kMailBytes,
      "[recv] the messages from {} have {} bytes in flight, expected at most "
      "{}. Start all ranks again.",
      channel_.rank_text(from),
      come,
      kMailBytes);
  const int64_t now = std::min(come, begin + bytes - message.taken);
  if (now > 0) {
    in_ring(
        layout.ring_data(from, channel_.rank()),
        read,
        now,
        [&](const std::byte* place, int64_t offset, int64_t length) {
          copy_bytes(to + offset, place, length);
        });
    ring.read.store(read + now, std::memory_order_release);
    message.taken += now;
    channel_.wake(from);
  }
  return message.taken == begin + bytes;
}

} // namespace dtensor::detail

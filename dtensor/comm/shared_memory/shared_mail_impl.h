// SPDX-License-Identifier: BSD-3-Clause
// SharedMail: point-to-point messages between members of a SharedChannel.
//
// A message passes through the ring from its sender to its receiver in chunks.
// The receiver drains its rings during every wait, and keeps each message until
// a recv() with the message's tag. A sender with a full ring therefore blocks
// at most until the receiver's next wait.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/comm/shared_memory/shared_channel_impl.h>

#include <deque>
#include <map>
#include <utility>
#include <vector>

namespace dtensor::detail {

/// Maximum number of dimensions in an envelope. A tensor with more dimensions
/// arrives one-dimensional.
constexpr int64_t kEnvelopeDims = 8;

class SharedMail {
 public:
  explicit SharedMail(SharedChannel& channel);
  SharedMail(const SharedMail&) = delete;
  SharedMail& operator=(const SharedMail&) = delete;

  /// Returns when the message is in the ring and `input` may be modified.
  void send(const at::Tensor& input, int64_t to, int64_t tag);
  /// Returns the next message with this sender and tag.
  at::Tensor recv(int64_t from, int64_t tag);

 private:
  using Address = std::pair<int64_t, int64_t>; // from, tag

  /// Header of a message.
  struct Envelope {
    int64_t tag = 0;
    at::ScalarType dtype = at::kByte;
    int64_t dims = 0;
    std::array<int64_t, kEnvelopeDims> sizes{};
  };
  /// Message that is being received.
  struct Incoming {
    Envelope envelope;
    at::Tensor tensor;
    /// Bytes received so far, including the envelope.
    int64_t taken = 0;
  };

  /// Throws RuntimeError unless the envelope is valid.
  void check_envelope(int64_t from, const Envelope& envelope) const;
  static Envelope envelope_of(const at::Tensor& input, int64_t tag);
  void put(int64_t to, const void* data, int64_t bytes);
  void take_in();
  void take_in_from(int64_t from);
  bool take_bytes(
      int64_t from,
      Incoming& message,
      void* data,
      int64_t begin,
      int64_t bytes);

  SharedChannel& channel_;
  /// Value of this member's mail counter when the rings were last drained.
  int64_t seen_ = 0;
  std::vector<Incoming> incoming_;
  std::map<Address, std::deque<at::Tensor>> arrived_;
};

} // namespace dtensor::detail

// SPDX-License-Identifier: BSD-3-Clause
// SharedMail: messages between two members of a SharedChannel.
//
// A message goes through the ring from its sender to its receiver, piece by
// piece. The receiver takes in whatever has come, also while it waits for
// something else, and keeps it until somebody asks for it by its tag: so a
// sender waits for room at most until the receiver next waits for anything.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/comm/processes/shared_channel_impl.h>

#include <deque>
#include <map>
#include <utility>
#include <vector>

namespace dtensor::detail {

/// The most dimensions that a message's shape is told of; one of more comes as
/// one-dimensional.
constexpr int64_t kEnvelopeDims = 8;

class SharedMail {
 public:
  explicit SharedMail(SharedChannel& channel);
  SharedMail(const SharedMail&) = delete;
  SharedMail& operator=(const SharedMail&) = delete;

  /// Returns when the message is in the ring, so that `input` may change.
  void send(const at::Tensor& input, int64_t to, int64_t tag);
  /// The next message of that sender and tag.
  at::Tensor recv(int64_t from, int64_t tag);

 private:
  using Address = std::pair<int64_t, int64_t>; // from, tag

  /// What a message begins with.
  struct Envelope {
    int64_t tag = 0;
    at::ScalarType dtype = at::kByte;
    int64_t dims = 0;
    std::array<int64_t, kEnvelopeDims> sizes{};
  };
  /// A message that is coming in.
  struct Incoming {
    Envelope envelope;
    at::Tensor tensor;
    /// Of its bytes, the envelope's first.
    int64_t taken = 0;
  };

  /// Throws RuntimeError unless a message can begin so.
  void check_envelope(int64_t from, const Envelope& envelope) const;
  static Envelope envelope_of(const at::Tensor& input, int64_t tag);
  void put(int64_t to, const void* data, int64_t bytes);
  void take_in();
  void take_in_from(int64_t from);
  bool take(
      int64_t from,
      Incoming& message,
      void* data,
      int64_t begin,
      int64_t bytes);

  SharedChannel& channel_;
  /// How often others had put something into rings when we last looked.
  int64_t seen_ = 0;
  std::vector<Incoming> incoming_;
  std::map<Address, std::deque<at::Tensor>> arrived_;
};

} // namespace dtensor::detail

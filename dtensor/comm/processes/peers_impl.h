// SPDX-License-Identifier: BSD-3-Clause
// What a rank can learn of the others when a collective has failed: who has
// ended, and what they left in the store.
#pragma once

#include <dtensor/comm/processes/rendezvous_impl.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace dtensor::detail {

class Peers : public std::enable_shared_from_this<Peers> {
 public:
  Peers(int64_t rank, Rendezvous rendezvous);

  /// How many ranks there are, this one included.
  int64_t size() const {
    return static_cast<int64_t>(rendezvous_.peers.size());
  }
  c10d::Store& store() const {
    return *rendezvous_.store;
  }
  const StorePtr& store_ptr() const {
    return rendezvous_.store;
  }
  /// "rank 2 (process 4711 on oak)".
  std::string name(int64_t rank) const;
  /// Of several; of many their numbers alone.
  std::string names(const std::vector<int64_t>& ranks) const;
  const std::string& host(int64_t rank) const {
    return of(rank).host;
  }
  /// This rank's number among those of its host.
  int64_t local_rank() const;

  /// Tells the others what has gone wrong here: the cause, or, if it only
  /// follows from what others did, a collective that failed. The first counts.
  void tell(const std::string& text, bool is_cause) noexcept;

  /// Says that this rank goes. In the process that keeps the store, returns
  /// once every other rank has said so, has failed or has ended, or after
  /// `timeout`.
  void leave(std::chrono::milliseconds timeout) noexcept;

  /// Which of these ranks have ended, and what they told, as far as it is known
  /// within a moment; else which of them say nothing.
  std::string what_became_of(const std::vector<int64_t>& ranks) const noexcept;

  /// Returns when all others have told that they failed too, or after a moment:
  /// for the rank that keeps the store and is about to end.
  void linger() const noexcept;

 private:
  const Peer& of(int64_t rank) const {
    return rendezvous_.peers[static_cast<size_t>(rank)];
  }
  bool has_told(int64_t rank) const;
  bool has_left(int64_t rank) const;
  /// The ranks that still need the store.
  std::vector<int64_t> staying() const;
  void await_leaving(std::chrono::milliseconds timeout) const;
  std::string look_for_causes(const std::vector<int64_t>& ranks) const;
  void await_telling() const;
  /// Why it failed of itself, or that it has ended; empty: it has not.
  std::string what_became_of(int64_t rank) const;
  std::string causes(const std::vector<int64_t>& ranks) const;
  std::vector<int64_t> silent(const std::vector<int64_t>& ranks) const;
  /// Whether it runs, where this rank can see that.
  bool runs(int64_t rank) const;

  int64_t rank_;
  Rendezvous rendezvous_;
  bool has_told_ = false;
};

} // namespace dtensor::detail

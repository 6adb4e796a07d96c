// SPDX-License-Identifier: BSD-3-Clause
// Peers: the information that a rank can obtain about the other ranks after a
// failed collective, from the processes and from the store.
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
  ~Peers();
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  /// Returns the number of ranks, including this rank.
  int64_t size() const {
    return static_cast<int64_t>(rendezvous_.peers.size());
  }
  c10d::Store& store() const {
    return *rendezvous_.store;
  }
  const StorePtr& store_ptr() const {
    return rendezvous_.store;
  }
  /// Returns "rank 2 (process 4711 on oak)".
  std::string name(int64_t rank) const;
  /// Returns the names of several ranks, or only their numbers if there are
  /// many.
  std::string names(const std::vector<int64_t>& ranks) const;
  const std::string& host(int64_t rank) const {
    return of(rank).host;
  }
  /// Returns the number of this rank within its host.
  int64_t local_rank() const;

  /// Publishes this rank's failure to the others. `is_cause` is false if the
  /// failure is a consequence of another failure, such as a collective that
  /// failed because of a peer. Only the first call has an effect.
  void publish_failure(const std::string& text, bool is_cause) noexcept;

  /// Announces that this rank leaves. In the process that hosts the store,
  /// returns once every other rank has left, failed or ended, or after
  /// `timeout`.
  void leave(std::chrono::milliseconds timeout) noexcept;

  /// Describes which of `ranks` have left or ended, and the failures that they
  /// published, as far as known within a moment. If there are none, describes
  /// which ranks do not respond.
  std::string describe_failures(
      const std::vector<int64_t>& ranks) const noexcept;

  /// Returns when all other ranks have published their failures, or after a
  /// moment. Called by the rank that hosts the store before it exits.
  void linger() const noexcept;

 private:
  const Peer& of(int64_t rank) const {
    return rendezvous_.peers[static_cast<size_t>(rank)];
  }
  bool has_published_failure(int64_t rank) const;
  bool has_left(int64_t rank) const;
  /// Returns the ranks that still need the store.
  std::vector<int64_t> staying() const;
  void await_leaving(std::chrono::milliseconds timeout) const;
  std::string find_failure_causes(const std::vector<int64_t>& ranks) const;
  void await_failure_reports() const;
  /// Returns the failure that the rank published as a cause. Without such a
  /// failure, returns that the rank has left or its process has ended; "" if
  /// neither is the case.
  std::string describe_failures(int64_t rank) const;
  std::string causes(const std::vector<int64_t>& ranks) const;
  std::vector<int64_t> silent(const std::vector<int64_t>& ranks) const;
  /// Returns false if this rank detects that the process of `rank` has
  /// ended.
  bool runs(int64_t rank) const;

  int64_t rank_;
  Rendezvous rendezvous_;
  bool has_published_ = false;
};

} // namespace dtensor::detail

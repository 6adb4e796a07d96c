// SPDX-License-Identifier: BSD-3-Clause
// What a rank can learn of the others when a collective has failed: who has
// ended, and what they left in the store.
#pragma once

#include <dtensor/comm/processes/rendezvous_impl.h>

#include <string>
#include <vector>

namespace dtensor::detail {

class Peers {
 public:
  Peers(int64_t rank, Rendezvous rendezvous);

  c10d::Store& store() const {
    return *rendezvous_.store;
  }
  const StorePtr& store_ptr() const {
    return rendezvous_.store;
  }
  /// "rank 2 (process 4711 on oak)".
  std::string name(int64_t rank) const;
  const std::string& host(int64_t rank) const {
    return of(rank).host;
  }
  /// This rank's number among those of its host.
  int64_t local_rank() const;

  /// Tells the others what has gone wrong here: the cause, or, if it only
  /// follows from what others did, a collective that failed. The first counts.
  void tell(const std::string& text, bool is_cause) noexcept;

  /// Sentences that say which of these ranks have ended and what they told, as
  /// far as it is known within a moment.
  std::string what_became_of(const std::vector<int64_t>& ranks) const noexcept;

 private:
  const Peer& of(int64_t rank) const {
    return rendezvous_.peers[static_cast<size_t>(rank)];
  }
  /// Empty: not known.
  std::string what_became_of(int64_t rank) const;
  /// Whether it runs, where this rank can see that.
  bool runs(int64_t rank) const;

  int64_t rank_;
  Rendezvous rendezvous_;
  bool has_told_ = false;
};

} // namespace dtensor::detail

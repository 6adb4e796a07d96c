// SPDX-License-Identifier: BSD-3-Clause
// Membership: what a rank of a job of processes has with the others: who they
// are, what carries tensors to them, and what is told when one fails.
#pragma once

#include <dtensor/comm/processes/backend_choice_impl.h>
#include <dtensor/comm/processes/followed_backend_impl.h>
#include <dtensor/comm/processes/rendezvous_impl.h>
#include <dtensor/comm/processes/write_signals_impl.h>
#include <dtensor/comm/rank_memory_impl.h>

#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace dtensor::detail {

class Membership {
 public:
  /// Returns when all ranks have come. Throws ValueError if there is no such
  /// backend.
  Membership(const LaunchEnv& env, const ProcessGroupOptions& options);

  int64_t local_rank() const {
    return following_.peers->local_rank();
  }
  /// The same members get the same backend again. By the name that
  /// init_process_group() was given, or another.
  GroupBackendPtr backend(
      const GroupMembers& members,
      const std::string& name = "");

  /// Says that this rank goes. A rank that has the store in it stays until all
  /// have said so.
  void leave();
  /// Closes what it has to others.
  void disconnect();
  /// The same for a rank that has failed: they are told why, and whether it is
  /// the cause, or follows from what another rank did.
  void abandon(const std::string& why, bool is_cause);
  /// A rank that has failed, and ends with it what the others need, lets them
  /// tell each other for a moment.
  void linger();

 private:
  GroupBackendPtr make_backend(
      const GroupMembers& members,
      const std::string& name) const;

  ChosenBackends chosen_;
  KeepFreedMemory memory_;
  IgnoreWriteSignals signals_;
  std::chrono::milliseconds timeout_;
  bool checks_;
  /// The name of the backend that communicates by MPI, if one does.
  std::string mpi_;
  bool has_store_ = false;
  Following following_;
  std::mutex mutex_;
  // By members and name.
  std::map<std::pair<std::vector<int64_t>, std::string>, GroupBackendPtr>
      backends_;
};

} // namespace dtensor::detail

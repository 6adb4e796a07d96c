// SPDX-License-Identifier: BSD-3-Clause
// Membership: a rank's connection to the other ranks of a job of processes. A
// Membership holds the peers and the backends, and reports failures.
#pragma once

#include <dtensor/comm/processes/backend_choice_impl.h>
#include <dtensor/comm/processes/failure_reporting_backend_impl.h>
#include <dtensor/comm/processes/rendezvous_impl.h>
#include <dtensor/comm/processes/write_signals_impl.h>
#include <dtensor/comm/rank/rank_memory_impl.h>

#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace dtensor::detail {

class Membership {
 public:
  /// Returns when all ranks have arrived. Throws ValueError for an unknown
  /// backend.
  Membership(const LaunchEnv& env, const ProcessGroupOptions& options);

  int64_t local_rank() const {
    return following_.peers->local_rank();
  }
  /// Returns the backend of `members`, cached by members and name. `name`
  /// selects the backend; "" selects the backend of init_process_group().
  GroupBackendPtr backend(
      const GroupMembers& members,
      const std::string& name = "");

  /// Implements World::link_cost().
  LinkCost link_cost(
      const std::vector<int64_t>& ranks,
      c10::DeviceType device,
      const std::string& backend) const;

  /// Announces that this rank leaves the world. The rank that hosts the store
  /// blocks until all ranks have announced that they leave.
  void leave();
  /// Closes the connections to other ranks.
  void disconnect();
  /// Closes the connections after a failure and reports the reason to the other
  /// ranks. `is_cause` is false if the failure is a consequence of another
  /// rank's failure.
  void abandon(const std::string& why, bool is_cause);
  /// Delays the exit of a failed rank for a moment if the other ranks depend on
  /// this process, so that they can still exchange the reasons of their
  /// failures.
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
  /// Name of the backend that communicates by MPI; empty if none does.
  std::string mpi_;
  bool has_store_ = false;
  FailureContext following_;
  std::mutex mutex_;
  // Backends by members and name.
  std::map<std::pair<std::vector<int64_t>, std::string>, GroupBackendPtr>
      backends_;
};

} // namespace dtensor::detail

// SPDX-License-Identifier: BSD-3-Clause
// Membership: a rank's connection to the other ranks of a job of processes. A
// Membership holds the peers and the backends, and reports failures.
#pragma once

#include <dtensor/comm/processes/backend_choice_impl.h>
#include <dtensor/comm/processes/failure_reporting_backend_impl.h>
#include <dtensor/comm/processes/rendezvous_impl.h>
#include <dtensor/comm/processes/write_signals_impl.h>
#include <dtensor/comm/rank/rank_memory_impl.h>
#include <dtensor/comm/world.h>

#include <map>
#include <mutex>
#include <optional>
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

/// One rank's view of a world of several processes.
class MemberWorld : public World {
 public:
  MemberWorld(int64_t rank, int64_t size, const char* name)
      : World(rank, size, name) {}

  /// Waits for all ranks. Call this function first, in the rank's own thread.
  void join(const LaunchEnv& env, const ProcessGroupOptions& options) {
    membership_.emplace(env, options);
  }
  /// Null before join().
  Membership* membership() {
    return membership_ ? &*membership_ : nullptr;
  }
  int64_t node_local_rank() const override {
    return membership_->local_rank();
  }
  LinkCost link_cost(
      const std::vector<int64_t>& ranks,
      c10::DeviceType device,
      const std::string& backend) const override {
    return membership_->link_cost(ranks, device, backend);
  }

 protected:
  GroupBackendPtr make_backend(GroupMembers members) override {
    return membership_->backend(members);
  }
  GroupBackendPtr make_chosen_backend(
      GroupMembers members,
      const std::string& backend) override {
    return membership_->backend(members, backend);
  }

 private:
  std::optional<Membership> membership_;
};

} // namespace dtensor::detail

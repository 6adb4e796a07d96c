// SPDX-License-Identifier: BSD-3-Clause
// ProcessWorld: a world of processes, as one of them sees it.
#pragma once

#include <dtensor/comm/processes/backend_choice_impl.h>
#include <dtensor/comm/processes/followed_backend_impl.h>
#include <dtensor/comm/rank_memory_impl.h>
#include <dtensor/comm/world.h>

#include <map>
#include <mutex>
#include <vector>

namespace dtensor::detail {

class ProcessWorld final : public World {
 public:
  /// Throws ValueError if there is no such backend.
  ProcessWorld(
      const LaunchEnv& env,
      Rendezvous rendezvous,
      const ProcessGroupOptions& options);

  int64_t local_rank() const {
    return following_.peers->local_rank();
  }
  /// Says that this rank goes. A rank that has the store in it stays until all
  /// have said so.
  void leave();
  /// Says that this rank has failed, and why.
  void fail(const std::string& why);
  /// Closes what it has to others, by which they notice, after end(). A rank
  /// that has failed and has the store in it lets them read it for a moment.
  void disconnect(bool has_failed);

 protected:
  GroupBackendPtr make_backend(GroupMembers members) override;

 private:
  Following following_;
  ChosenBackends chosen_;
  KeepFreedMemory memory_;
  std::chrono::milliseconds timeout_;
  bool checks_;
  bool has_store_;
  std::mutex mutex_;
  std::map<std::vector<int64_t>, GroupBackendPtr> backends_;
};

} // namespace dtensor::detail

// SPDX-License-Identifier: BSD-3-Clause
// HybridRank: a rank in a world of several processes with several threads each.
// Groups inside its process meet as threads do. In all other groups the rank
// acts like a process, with a membership of its own.
#pragma once

#include <dtensor/comm/processes/membership_impl.h>
#include <dtensor/comm/threads/thread_backend_impl.h>
#include <dtensor/comm/world.h>

#include <memory>
#include <optional>
#include <utility>

namespace dtensor::detail {

class HybridRank final : public World {
 public:
  HybridRank(std::shared_ptr<ThreadHub> hub, int64_t rank)
      : World(rank, hub->size(), "run_world"),
        hub_(std::move(hub)) {}

  /// Waits for all ranks. Call it first, in the rank's own thread.
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
      const std::string& backend) const override;
  const void* shared() const override {
    return hub_.get();
  }

 protected:
  GroupBackendPtr make_backend(GroupMembers members) override;
  GroupBackendPtr make_chosen_backend(
      GroupMembers members,
      const std::string& backend) override {
    return membership_->backend(members, backend);
  }

 private:
  std::shared_ptr<ThreadHub> hub_;
  std::optional<Membership> membership_;
};

} // namespace dtensor::detail

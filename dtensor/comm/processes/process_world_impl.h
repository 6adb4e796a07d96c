// SPDX-License-Identifier: BSD-3-Clause
// ProcessWorld: a world of processes, as seen from one rank.
#pragma once

#include <dtensor/comm/processes/membership_impl.h>
#include <dtensor/comm/world.h>

#include <utility>

namespace dtensor::detail {

class ProcessWorld final : public World {
 public:
  /// Returns once all ranks have arrived. Throws ValueError for an unknown
  /// backend.
  ProcessWorld(const LaunchEnv& env, const ProcessGroupOptions& options)
      : World(env.rank, env.size, "process group"),
        membership_(env, options) {}

  Membership& membership() {
    return membership_;
  }
  int64_t node_local_rank() const override {
    return membership_.local_rank();
  }
  LinkCost link_cost(
      const std::vector<int64_t>& ranks,
      c10::DeviceType device,
      const std::string& backend) const override {
    return membership_.link_cost(ranks, device, backend);
  }

 protected:
  GroupBackendPtr make_backend(GroupMembers members) override {
    return membership_.backend(members);
  }
  GroupBackendPtr make_chosen_backend(
      GroupMembers members,
      const std::string& backend) override {
    return membership_.backend(members, backend);
  }

 private:
  Membership membership_;
};

} // namespace dtensor::detail

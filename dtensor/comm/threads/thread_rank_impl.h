// SPDX-License-Identifier: BSD-3-Clause
// ThreadRank: one rank's view of a world of threads of this process.
#pragma once

#include <dtensor/comm/threads/thread_backend_impl.h>
#include <dtensor/comm/world.h>

#include <memory>
#include <utility>

namespace dtensor::detail {

class ThreadRank final : public World {
 public:
  ThreadRank(std::shared_ptr<ThreadHub> hub, int64_t rank, const char* name)
      : World(rank, hub->size(), name),
        hub_(std::move(hub)) {}

  const void* shared() const override {
    return hub_.get();
  }

 protected:
  GroupBackendPtr make_backend(GroupMembers members) override {
    return std::make_shared<ThreadBackend>(std::move(members), hub_);
  }

 private:
  std::shared_ptr<ThreadHub> hub_;
};

} // namespace dtensor::detail

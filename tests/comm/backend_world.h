// SPDX-License-Identifier: BSD-3-Clause
// A World whose groups use the backends that a function makes.
#pragma once

#include <c10/util/StringUtil.h>
#include <dtensor/comm/backends.h>
#include <dtensor/comm/world.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <map>
#include <string>
#include <utility>

namespace dtensor::test {

class BackendWorld final : public World {
 public:
  BackendWorld(
      int64_t rank,
      int64_t size,
      c10::intrusive_ptr<c10d::Store> store,
      MakeBackend make)
      : World(rank, size, "backend world"),
        store_(std::move(store)),
        make_(std::move(make)) {}

 protected:
  GroupBackendPtr make_backend(GroupMembers members) override {
    const std::string name = c10::Join("-", members.ranks);
    auto& backend = backends_[name];
    if (!backend) {
      const RendezvousInfo place = {
          .store = c10::make_intrusive<c10d::PrefixStore>(name, store_),
          .timeout = std::chrono::seconds(60),
          .hosts = std::vector<std::string>(members.ranks.size(), "host")};
      backend = make_(std::move(members), place);
    }
    return backend;
  }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  MakeBackend make_;
  std::map<std::string, GroupBackendPtr> backends_;
};

} // namespace dtensor::test

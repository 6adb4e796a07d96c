// SPDX-License-Identifier: BSD-3-Clause
// BackendLayer: a backend around another one, which adds behavior to all of its
// collectives. A derived class overrides submit(), which calls
// BackendLayer::submit(). To put a layer around the backends of all groups of a
// rank, pass wrap_backends() (comm/world.h) a function that makes the layer.
#pragma once

#include <dtensor/comm/group_backend.h>

#include <string>
#include <utility>

namespace dtensor {

/// Forwards each call to the backend that it surrounds.
class DTENSOR_API BackendLayer : public GroupBackend {
 public:
  /// Makes a layer with the members and needs of `inner`.
  explicit BackendLayer(GroupBackendPtr inner)
      : GroupBackend(inner->members(), inner->needs()),
        inner_(std::move(inner)) {}

  InFlight submit(Collective&& collective) override {
    return inner_->submit(std::move(collective));
  }
  bool progresses_in_background(c10::DeviceType device) const override {
    return inner_->progresses_in_background(device);
  }
  void assume(const Spec& spec) override {
    inner_->assume(spec);
  }
  void set_operator_errors(int64_t total, const std::string& last) override {
    inner_->set_operator_errors(total, last);
  }
  void abandon(const std::string& why) override {
    inner_->abandon(why);
  }

 protected:
  /// Returns the backend that this one surrounds.
  GroupBackend& inner() const {
    return *inner_;
  }

 private:
  GroupBackendPtr inner_;
};

} // namespace dtensor

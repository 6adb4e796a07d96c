// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/processes/gloo_impl.h>

#include <dtensor/comm/backend/gloo_threads_impl.h>
#include <dtensor/comm/backend/message_of_impl.h>
#include <dtensor/comm/c10d_group.h>
#include <dtensor/error.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <cstdlib>

namespace dtensor::detail {
namespace {

auto make_device(const RendezvousInfo& place) {
  using Gloo = c10d::ProcessGroupGloo;
  if (place.is_on_one_host()) {
    return Gloo::createDeviceForHostname("127.0.0.1");
  }
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  return interface != nullptr ? Gloo::createDeviceForInterface(interface)
                              : Gloo::createDefaultDevice();
}

} // namespace

GroupBackendPtr make_gloo(GroupMembers members, const RendezvousInfo& place) {
  stop_failing_gloo_threads();
  try {
    auto options = c10d::ProcessGroupGloo::Options::create(place.timeout);
    options->devices.push_back(make_device(place));
    auto gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(
        place.store,
        static_cast<int>(members.rank),
        static_cast<int>(members.ranks.size()),
        std::move(options));
    // Waits until all ranks are connected. Otherwise a rank could drop the
    // group, and close its connections while another rank still waits for them
    // in the constructor ("Connection closed by peer").
    gloo->barrier()->wait();
    return c10d_group(std::move(gloo), std::move(members));
  } catch (const std::exception& error) {
    DTENSOR_THROW(
        "[gloo] the {} ranks of \"{}\" could not be connected: {}. Check that "
        "all of them are running, and set GLOO_SOCKET_IFNAME to the interface "
        "through which hosts reach each other.",
        members.ranks.size(),
        members.label,
        message_of(error));
  }
}

} // namespace dtensor::detail

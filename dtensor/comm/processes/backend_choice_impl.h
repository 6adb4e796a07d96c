// SPDX-License-Identifier: BSD-3-Clause
// Selection of the backends that carry a world's tensors, from the names that
// the program or the environment gives.
#pragma once

#include <dtensor/comm/backends.h>
#include <dtensor/layout/cost.h>

#include <optional>
#include <string>
#include <vector>

namespace dtensor::detail {

/// Backend for tensors of one device type, or of all device types if `device`
/// is empty.
struct ChosenBackend {
  std::optional<c10::DeviceType> device;
  std::string name;

  friend bool operator==(const ChosenBackend&, const ChosenBackend&) = default;
};
using ChosenBackends = std::vector<ChosenBackend>;

/// Parses "name" or "cpu:name,cuda:other". Uses DTENSOR_BACKEND if `text` is
/// empty, and "auto" if both are empty. Returns at least one backend. Throws
/// ValueError for an unknown device or backend, for a device named twice, and
/// for a backend that does not support its device.
ChosenBackends choose_backends(const std::string& text);

/// Returns true if `chosen` is the fake backend, which does not communicate.
bool are_fake(const ChosenBackends& chosen);

/// Returns the typical cost of the backend that carries tensors on `device`,
/// for a group on one host or on several hosts.
LinkCost typical_cost(
    const ChosenBackends& chosen,
    c10::DeviceType device,
    bool is_on_one_host);

/// Creates the chosen backend, or a backend that dispatches by device if
/// several are chosen.
GroupBackendPtr make_chosen(
    const ChosenBackends& chosen,
    GroupMembers members,
    const RendezvousInfo& place);

} // namespace dtensor::detail

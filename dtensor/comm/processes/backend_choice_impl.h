// SPDX-License-Identifier: BSD-3-Clause
// Which backends carry a world's tensors, as the program or the environment
// names them.
#pragma once

#include <dtensor/comm/backends.h>

#include <optional>
#include <string>
#include <vector>

namespace dtensor::detail {

/// For tensors of one type of device; of none: for all.
struct ChosenBackend {
  std::optional<c10::DeviceType> device;
  std::string name;

  friend bool operator==(const ChosenBackend&, const ChosenBackend&) = default;
};
using ChosenBackends = std::vector<ChosenBackend>;

/// Of "name" or "cpu:name,cuda:other"; of DTENSOR_BACKEND if `text` is empty,
/// and "auto" if that is too. At least one. Throws ValueError for what names no
/// device or no backend, for a device named twice, and for a backend that does
/// not carry tensors of that device.
ChosenBackends choose_backends(const std::string& text);

/// Whether they are to talk to nobody.
bool are_fake(const ChosenBackends& chosen);

/// A backend of the only one that is chosen, or of them for each device.
GroupBackendPtr make_chosen(
    const ChosenBackends& chosen,
    GroupMembers members,
    const MeetingPlace& place);

} // namespace dtensor::detail

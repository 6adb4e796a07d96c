// SPDX-License-Identifier: BSD-3-Clause
// A backend for each type of device: a group then carries a tensor of the CPU
// over one and a CUDA tensor over another.
#pragma once

#include <dtensor/comm/backends.h>

#include <vector>

namespace dtensor::detail {

/// What carries tensors of one type of device.
struct DeviceBackend {
  c10::DeviceType device = c10::kCPU;
  std::string name;
  MakeBackend make;
};

/// What has no tensor (barriers, strings, sizes asked for) goes over the CPU's
/// backend, or, if there is none, the first. That of the CPU is made at once,
/// any other when the first tensor of its device comes, by all members; a name
/// that stands for several devices is made once. A tensor of a device that has
/// none is ValueError.
DTENSOR_API GroupBackendPtr per_device_backend(
    GroupMembers members,
    const MeetingPlace& place,
    std::vector<DeviceBackend> backends);

} // namespace dtensor::detail

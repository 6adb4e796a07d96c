// SPDX-License-Identifier: BSD-3-Clause
// A backend per device type. A group then uses one backend for CPU tensors and
// another for CUDA tensors.
#pragma once

#include <dtensor/comm/backends.h>

#include <vector>

namespace dtensor::detail {

/// Backend for tensors of one device type.
struct DeviceBackend {
  c10::DeviceType device = c10::kCPU;
  std::string name;
  MakeBackend make;
};

/// Makes a backend that dispatches on the tensor's device. Calls without a
/// tensor (barriers, strings, exchanged sizes) use the CPU's backend, or the
/// first backend if the CPU has none. The CPU's backend is made at once. All
/// members make another backend when they pass the first tensor of its device.
/// A backend listed for several devices is made once. Throws ValueError for a
/// tensor on a device without a backend.
GroupBackendPtr per_device_backend(
    GroupMembers members,
    const RendezvousInfo& place,
    std::vector<DeviceBackend> backends);

} // namespace dtensor::detail

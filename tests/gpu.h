// SPDX-License-Identifier: BSD-3-Clause
// Functions for GPUs with an interface that every LibTorch has. GPU tests
// therefore compile for the CPU too, where they are skipped.
#pragma once

#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstdint>

namespace dtensor::test {

/// Returns the number of GPUs, or 0 if LibTorch has no GPU support.
inline int64_t gpus() {
  return c10::impl::hasDeviceGuardImpl(c10::kCUDA)
      ? c10::impl::VirtualGuardImpl(c10::kCUDA).deviceCount()
      : 0;
}

/// Makes a GPU current in this thread, round-robin, and returns it.
inline c10::Device take_gpu(int64_t number) {
  const c10::Device device(
      c10::kCUDA, static_cast<c10::DeviceIndex>(number % gpus()));
  c10::impl::VirtualGuardImpl(c10::kCUDA).setDevice(device);
  return device;
}

/// Makes a stream other than the default stream current in this thread while an
/// instance lives, as is possible on a rank.
class OwnStream {
 public:
  explicit OwnStream(c10::Device device)
      : guard_(device.type()),
        before_(guard_.exchangeStream(
            guard_.getStreamFromGlobalPool(device, /*isHighPriority=*/false))) {
  }
  ~OwnStream() {
    guard_.exchangeStream(before_);
  }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;

 private:
  c10::impl::VirtualGuardImpl guard_;
  c10::Stream before_;
};

} // namespace dtensor::test

#define DTENSOR_NEEDS_GPU()            \
  if (dtensor::test::gpus() == 0) {    \
    GTEST_SKIP() << "skipped: no GPU"; \
  }

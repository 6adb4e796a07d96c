// SPDX-License-Identifier: BSD-3-Clause
// GPUs by way of what every LibTorch has, so that tests of them compile for the
// CPU too, where they are skipped.
#pragma once

#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstdint>

namespace dtensor::test {

/// 0 where LibTorch knows none.
inline int64_t gpus() {
  return c10::impl::hasDeviceGuardImpl(c10::kCUDA)
      ? c10::impl::VirtualGuardImpl(c10::kCUDA).deviceCount()
      : 0;
}

/// Makes one of them current in this thread, in turns.
inline c10::Device take_gpu(int64_t number) {
  const c10::Device device(
      c10::kCUDA, static_cast<c10::DeviceIndex>(number % gpus()));
  c10::impl::VirtualGuardImpl(c10::kCUDA).setDevice(device);
  return device;
}

/// While it lives, another stream than the default one is current in this
/// thread, as a rank may have it.
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

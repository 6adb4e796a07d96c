// SPDX-License-Identifier: BSD-3-Clause
// Where parts are copied to before training goes on.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstdint>
#include <vector>

namespace dtensor::detail {

/// Memory that every save uses again, and that grows as it must.
class CopyRoom {
 public:
  /// Makes all of them copies on the CPU, each at a multiple of 64 bytes. They
  /// last until the next call.
  void copy(std::vector<at::Tensor>& values) {
    int64_t bytes = 0;
    for (const auto& value : values) {
      bytes += padded(value);
    }
    if (!memory_.defined() || memory_.numel() < bytes) {
      memory_.reset(); // before the larger one is there
      memory_ = at::empty({bytes}, at::kByte);
    }
    int64_t at = 0;
    for (auto& value : values) {
      const auto size = value.numel() * value.element_size();
      auto copied = memory_.narrow(0, at, size)
                        .view(value.scalar_type())
                        .view(value.sizes());
      at += padded(value);
      copied.copy_(value);
      value = copied;
    }
  }

 private:
  static int64_t padded(const at::Tensor& value) {
    return (value.numel() * value.element_size() + 63) / 64 * 64;
  }
  at::Tensor memory_;
};

} // namespace dtensor::detail

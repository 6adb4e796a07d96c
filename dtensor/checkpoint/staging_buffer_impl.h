// SPDX-License-Identifier: BSD-3-Clause
// StagingBuffer: the buffer to which shards are copied before training
// continues.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstdint>
#include <vector>

namespace dtensor::detail {

/// Buffer that all saves reuse and that grows when necessary.
class StagingBuffer {
 public:
  /// Replaces all values by copies on the CPU, each aligned to 64 bytes. The
  /// copies are valid until the next call.
  void copy(std::vector<at::Tensor>& values) {
    int64_t bytes = 0;
    for (const auto& value : values) {
      bytes += padded(value);
    }
    if (!memory_.defined() || memory_.numel() < bytes) {
      memory_.reset(); // free it before allocating the larger one
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

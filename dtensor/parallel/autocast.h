// SPDX-License-Identifier: BSD-3-Clause
// Autocast: operators in a lower precision, until the end of the scope.
//
//   {
//     const Autocast scope(torch::kCPU, torch::kBFloat16);
//     loss = model(x);
//   }
//   loss.backward();
//
// DTensors are cast as plain tensors are, before anything is communicated.
// Python: torch.autocast.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>
#include <dtensor/api.h>

#include <optional>

namespace dtensor {

/// Of this thread. Scopes nest; `enabled = false` switches it off inside one.
class DTENSOR_API Autocast {
 public:
  /// Without a dtype: LibTorch's for the device (bfloat16, CUDA float16).
  /// cache_enabled: whether what was cast of a parameter serves the next
  /// operator too; as before if it is not said.
  explicit Autocast(
      c10::DeviceType device_type = c10::kCPU,
      std::optional<c10::ScalarType> dtype = std::nullopt,
      bool enabled = true,
      std::optional<bool> cache_enabled = std::nullopt);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  c10::DeviceType device_type_;
  bool was_enabled_;
  c10::ScalarType was_dtype_;
  bool was_caching_;
};

} // namespace dtensor

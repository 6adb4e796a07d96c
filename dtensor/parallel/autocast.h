// SPDX-License-Identifier: BSD-3-Clause
// Autocast: runs operators in a lower precision until the end of the scope.
//
//   {
//     const Autocast scope(torch::kCPU, torch::kBFloat16);
//     loss = model(x);
//   }
//   loss.backward();
//
// DTensors are cast as plain tensors are, before any communication.
// Python: torch.autocast.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>
#include <dtensor/api.h>

#include <optional>

namespace dtensor {

/// Scope that applies to the operators of this thread. Scopes nest; `enabled =
/// false` turns autocast off inside another scope.
class DTENSOR_API Autocast {
 public:
  /// `dtype` defaults to LibTorch's for the device (CPU: bfloat16, CUDA:
  /// float16). `cache_enabled` reuses the casts of parameters within the
  /// outermost scope; by default the current setting is kept.
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

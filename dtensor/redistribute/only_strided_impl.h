// SPDX-License-Identifier: BSD-3-Clause
// A predicate for plain strided tensors, on which kernels may be called
// directly, without dispatch.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>

namespace dtensor::detail {

/// True if `t` is a strided tensor on a CPU or CUDA device, without dispatch
/// keys that have kernels of their own.
inline bool is_only_strided(const at::Tensor& t) {
  using Key = c10::DispatchKey;
  constexpr auto kOrdinary =
      c10::DispatchKeySet(c10::BackendComponent::CPUBit) |
      c10::DispatchKeySet(c10::BackendComponent::CUDABit) |
      c10::DispatchKeySet(
          {Key::Dense,
           Key::AutogradFunctionality,
           Key::ADInplaceOrView,
           Key::AutocastCPU,
           Key::AutocastCUDA});
  return kOrdinary.has_all(t.key_set());
}

} // namespace dtensor::detail

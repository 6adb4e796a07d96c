// SPDX-License-Identifier: BSD-3-Clause
// Tensors that are memory with strides and nothing besides, for those who do by
// themselves what LibTorch would do to such a tensor in the end.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>

namespace dtensor::detail {

/// Whether `t` is one: on a CPU or a CUDA device, without keys that have
/// kernels of their own.
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

// SPDX-License-Identifier: BSD-3-Clause
// Helpers for the rules of losses.
#pragma once

#include <dtensor/ops/registry.h>
#include <dtensor/ops/rules/shapes_impl.h>

#include <ATen/core/Reduction.h>

namespace dtensor::detail {

inline bool keeps_shape(const OpCall& call) {
  return call.int_arg("reduction") == at::Reduction::None;
}

// Keeps the specs of all inputs, which the local kernels use.
inline void keep_specs(const OpCall& call, Decision& decision) {
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    if (decision.inputs[i] == nullptr && !call.inputs[i].is_plain) {
      decision.inputs[i] = call.inputs[i].spec;
    }
  }
}

} // namespace dtensor::detail

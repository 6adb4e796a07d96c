// SPDX-License-Identifier: BSD-3-Clause
// Shapes of results that many operators have.
#pragma once

#include <dtensor/ops/op_call.h>

#include <vector>

namespace dtensor::detail {

/// Row-major.
inline OutputMeta dense(SizesRef sizes, at::ScalarType dtype) {
  return {
      Sizes(sizes.begin(), sizes.end()),
      dtensor::contiguous_strides(sizes),
      dtype,
      true};
}

/// One result, row-major, of the shape and dtype of the first input.
inline std::vector<OutputMeta> dense_like_first(const OpCall& call) {
  const auto& first = *call.inputs[0].spec;
  return {dense(first.sizes(), first.dtype())};
}

/// A result that is an undefined tensor.
inline OutputMeta undefined() {
  return {{}, {}, at::kFloat, false};
}

} // namespace dtensor::detail

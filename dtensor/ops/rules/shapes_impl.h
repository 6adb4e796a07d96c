// SPDX-License-Identifier: BSD-3-Clause
// Result shapes that many operators share.
#pragma once

#include <dtensor/layout/shard_math.h>
#include <dtensor/ops/op_call.h>

#include <algorithm>
#include <vector>

namespace dtensor::detail {

/// Returns a row-major result.
inline OutputMeta dense(SizesRef sizes, at::ScalarType dtype) {
  return {
      Sizes(sizes.begin(), sizes.end()),
      dtensor::contiguous_strides(sizes),
      dtype,
      true};
}

/// Returns one row-major result with the shape and dtype of the first input.
inline std::vector<OutputMeta> dense_like_first(const OpCall& call) {
  const auto& first = *call.inputs[0].spec;
  return {dense(first.sizes(), first.dtype())};
}

/// Returns true if this rank has elements of a tensor in this layout.
inline bool has_local_elements(const Spec& layout) {
  const auto sizes = layout.local_sizes();
  return std::ranges::find(sizes, 0) == sizes.end();
}

/// Returns a result that is an undefined tensor.
inline OutputMeta undefined() {
  return {{}, {}, at::kFloat, false};
}

/// Returns the shapes of the gradients of input, weight and bias that
/// output_mask selects.
std::vector<OutputMeta> norm_backward_meta(
    const OpCall& call,
    SizesRef parameter_sizes);

/// Returns the dimensions of size 1 among `dims`, which squeeze drops.
std::vector<int64_t> squeezed(SizesRef sizes, const std::vector<int64_t>& dims);

} // namespace dtensor::detail

// SPDX-License-Identifier: BSD-3-Clause
// The region of a tensor, the base, that a view covers, from the strides and
// offsets of the plain tensors in their places.
#pragma once

#include <dtensor/tensor/meta_impl.h>

#include <optional>
#include <vector>

namespace dtensor::detail {

/// The indices start, start + step, ... of one dimension of the base.
struct RegionDim {
  int64_t base_dim = 0;
  int64_t view_dim = -1; // -1: a single index, without a dimension of the view
  int64_t start = 0;
  int64_t step = 1;
  int64_t count = 1;
  bool is_all = false;
};

/// An entry for each dimension of the base, in their order.
using ViewRegion = std::vector<RegionDim>;

/// Returns the dimensions of more than one element, by descending strides.
std::vector<int64_t> from_outermost(const Spec& spec);

/// Returns the rectangle of the base that `view` covers, in any order of its
/// dimensions; nullopt if the view is not a rectangle.
std::optional<ViewRegion> region_of(
    const at::Tensor& view,
    const PlacedTensor& base);

} // namespace dtensor::detail

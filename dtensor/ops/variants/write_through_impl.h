// SPDX-License-Identifier: BSD-3-Clause
// Writes to views whose local tensors are copies.
//
// A view along a sharded dimension is redistributed, so its local tensor has
// its own memory. An in-place operator writes to this copy. Then every rank
// copies its elements of the view to its local tensor of the viewed tensor, the
// base.
#pragma once

#include <dtensor/tensor/meta_impl.h>

#include <optional>
#include <string>
#include <vector>

namespace dtensor::detail {

// The region of a tensor, the base, that a view covers. The region follows from
// the strides and offsets of the corresponding plain tensors.

/// The indices start, start + step, ... of one dimension of the base.
struct RegionDim {
  int64_t base_dim = 0;
  int64_t view_dim = -1; // -1: a single index, without a dimension of the view
  int64_t start = 0;
  int64_t step = 1;
  int64_t count = 1;
  bool is_all = false;
};

/// An entry for each dimension of the base, in the order of these dimensions.
using ViewRegion = std::vector<RegionDim>;

/// Returns the dimensions with more than one element, by descending strides.
std::vector<int64_t> from_outermost(const Spec& spec);

/// Returns the rectangle of the base that `view` covers, in any order of its
/// dimensions; nullopt if the view is not a rectangle.
std::optional<ViewRegion> region_of(
    const at::Tensor& view,
    const PlacedTensor& base);

/// Throws RuntimeError if operator `name` cannot write to `view`: a view with
/// its own memory of conjugated or negated values, in another dtype, with
/// elements that overlap, or for which partial terms were reduced. Does nothing
/// for other tensors.
void check_can_write_through(const std::string& name, const at::Tensor& view);

/// Keeps `view`, which is a copy, up to date after an in-place change of its
/// shape. Autograd counts the change as a write.
void note_change_of_shape(const at::Tensor& view);

/// Carries one write to a view with its own memory over to the base.
class WriteThrough {
 public:
  /// Prepares a write of operator `name` to `view`, which is a copy. Checks as
  /// check_can_write_through() does. The copy must be up to date.
  WriteThrough(const std::string& name, at::Tensor view);
  /// Copies what the operator wrote. A collective call on the mesh: gathers the
  /// dimensions along which a rank's elements of the view differ from its
  /// elements of the base.
  void finish() const;

 private:
  at::Tensor view_;
};

} // namespace dtensor::detail

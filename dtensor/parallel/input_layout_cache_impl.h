// SPDX-License-Identifier: BSD-3-Clause
// InputLayoutCache: a cache of the layouts of a module's last plain input. Most
// later inputs are alike, and skip the checks and lookups.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/layout/spec.h>

namespace dtensor::detail {

/// Cache that is used only by the rank that owns the module's mesh. Other
/// threads neither read nor write it.
class InputLayoutCache {
 public:
  /// True if `x`, as an input of a module on `mesh`, can use the cached
  /// layouts. False for DTensors.
  bool is_like(const at::Tensor& x, const DeviceMesh& mesh) const;
  /// Converts `x`, for which is_like() is true, to a DTensor in the layout
  /// `to`, without autograd history.
  at::Tensor enter(const at::Tensor& x) const;
  const SpecPtr& from() const {
    return from_;
  }

  /// Caches that `x` became a DTensor in layout `from`, then in `to`.
  /// `inferred`: the global shape was computed from the shape of `x`, which
  /// ranks compare from time to time.
  void note(
      const at::Tensor& x,
      const SpecPtr& from,
      const SpecPtr& to,
      bool inferred);

 private:
  Sizes sizes_;
  Sizes strides_;
  SpecPtr from_; // null: nothing cached
  SpecPtr to_;
  bool inferred_ = false;
};

} // namespace dtensor::detail

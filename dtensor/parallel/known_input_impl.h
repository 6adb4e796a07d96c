// SPDX-License-Identifier: BSD-3-Clause
// What became of a module's last plain input. Most that follow are like it, and
// take the same way without anybody finding out which.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/layout/spec.h>

namespace dtensor::detail {

/// Belongs to the rank of the module's mesh; other threads neither read nor
/// write it.
class KnownInput {
 public:
  /// Whether `x`, as an input of a module on `mesh`, takes the way of the last
  /// one. False for DTensors.
  bool is_like(const at::Tensor& x, const DeviceMesh& mesh) const;
  /// `x`, which is_like() it, as the DTensor that it becomes, without history.
  at::Tensor enter(const at::Tensor& x) const;
  const SpecPtr& from() const {
    return from_;
  }

  /// `x` became one of `from`, and then of `to`. `inferred`: the global shape
  /// followed from that of `x`, which ranks compare some time.
  void note(
      const at::Tensor& x,
      const SpecPtr& from,
      const SpecPtr& to,
      bool inferred);

 private:
  Sizes sizes_;
  Sizes strides_;
  SpecPtr from_; // null: there was none
  SpecPtr to_;
  bool inferred_ = false;
};

} // namespace dtensor::detail

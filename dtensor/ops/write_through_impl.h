// SPDX-License-Identifier: BSD-3-Clause
// Writes to views whose local tensors are copies.
//
// A view along a sharded dimension is redistributed, so its local tensor has
// its own memory. An in-place operator writes to that copy. Then every rank
// copies the elements that it holds of the viewed tensor, the base.
#pragma once

#include <dtensor/tensor/meta_impl.h>

#include <string>

namespace dtensor::detail {

/// Throws RuntimeError if operator `name` cannot write to `view`: a view with
/// its own memory of conjugated or negated values, in another dtype, with
/// elements that overlap, or for which partial terms were reduced. Does nothing
/// for other tensors.
void check_can_write_through(const std::string& name, const at::Tensor& view);

/// Keeps `view`, which is a copy, up to date after a change of its shape in
/// place. Autograd counts the change as a write.
void note_change_of_shape(const at::Tensor& view);

/// Carries one write to a view with its own memory over to the base.
class WriteThrough {
 public:
  /// Prepares a write of operator `name` to `view`, which is a copy. Checks as
  /// check_can_write_through() does. Takes the copy again if the base was
  /// written since.
  WriteThrough(const std::string& name, at::Tensor view);
  /// Copies what the operator wrote. A collective call on the mesh: gathers the
  /// dimensions of the view along which ranks hold other elements than of the
  /// base.
  void finish() const;

 private:
  at::Tensor view_;
};

} // namespace dtensor::detail

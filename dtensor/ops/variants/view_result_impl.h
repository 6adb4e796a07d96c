// SPDX-License-Identifier: BSD-3-Clause
// Relation of a view to its base.
//
// Most views are views of the local tensors, too. A result is a copy if the
// base had to be redistributed, conjugated or copied for the view. A write to
// such a copy is carried over to the base (ops/variants/write_through.cpp)
// or refused. A read of the copy after another write to the base is refused,
// too.
#pragma once

#include <dtensor/ops/strategy.h>
#include <dtensor/tensor/meta_impl.h>

#include <string>

namespace dtensor::detail {

/// Sets the offset at which `view` would begin in the memory of a plain base.
/// LibTorch's autograd distinguishes views of the same base by this offset.
inline void set_offset(const at::Tensor& view, int64_t offset) {
  if (offset != 0) {
    view.unsafeGetTensorImpl()->set_storage_offset(offset);
  }
}

/// Position of a view relative to its base.
struct ViewPlace {
  int64_t offset = 0;                      // in elements of the view
  CopyReason reason = CopyReason::kCopied; // if it is a copy
};

/// First argument of a call that returns views of this argument; empty for any
/// other call.
class ViewBase {
 public:
  ViewBase() = default;
  explicit ViewBase(const at::Tensor& base) : base_(base) {}

  /// Returns the place of result `index`, whose local tensor is `local`.
  ViewPlace place_of(
      const at::Tensor& local,
      const Decision& decision,
      size_t index) const;
  /// Completes the metadata of the view.
  void finish(const at::Tensor& view, const ViewPlace& place) const;

 private:
  at::Tensor base_;
};

/// Marks `view` as a copy. It has the values of a view of `base`, but its own
/// memory, because `base` was redistributed for the view.
void note_copied_from(const at::Tensor& view, const at::Tensor& base);

// Writes to views whose local tensors are copies (write_through.cpp).

/// Throws RuntimeError if operator `name` cannot write to `view`: a view with
/// its own memory of conjugated or negated values, in another dtype, with
/// elements that overlap, or for which partial terms were reduced. Does nothing
/// for other tensors.
void check_can_write_through(const std::string& name, const at::Tensor& view);

/// Keeps `view`, which is a copy, up to date after an in-place change of its
/// shape. Autograd counts the change as a write.
void note_change_of_shape(const at::Tensor& view);

/// Copies what an operator wrote to `view`, which is a copy, to its base. The
/// copy must have been up to date before the write. A collective call on the
/// mesh: gathers the dimensions along which a rank's elements of the view
/// differ from its elements of the base.
void write_through(const at::Tensor& view);

} // namespace dtensor::detail

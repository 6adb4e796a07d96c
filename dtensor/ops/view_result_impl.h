// SPDX-License-Identifier: BSD-3-Clause
// What a view has to know of the tensor that it was taken of.
//
// Most views are views of the local tensors too. One that had to be
// redistributed, conjugated or copied for is not: it is as good as a view until
// somebody writes. So a write to it is refused, and so is its use after a write
// to what it was taken of.
#pragma once

#include <dtensor/ops/strategy.h>
#include <dtensor/tensor/meta_impl.h>

#include <string>

namespace dtensor::detail {

/// Where `view` begins in the memory that a plain tensor in its place would
/// have. LibTorch's autograd tells views of one base apart by it.
inline void set_offset(const at::Tensor& view, int64_t offset) {
  if (offset != 0) {
    view.unsafeGetTensorImpl()->set_storage_offset(offset);
  }
}

/// How a view lies to what it was taken of.
struct ViewPlace {
  int64_t offset = 0;                      // in elements of the view
  CopyReason reason = CopyReason::kCopied; // if it is a copy
};

/// The first argument of a call that returns views of it; nothing of any other
/// call.
class Viewed {
 public:
  Viewed() = default;
  explicit Viewed(const at::Tensor& base) : base_(base) {}

  /// Of result `index`, whose local tensor is `local`.
  ViewPlace place_of(
      const at::Tensor& local,
      const Decision& decision,
      size_t index) const;
  /// Completes the view.
  void finish(const at::Tensor& view, const ViewPlace& place) const;

 private:
  at::Tensor base_;
};

/// Notes that `view` has the values of a view of `base`, and memory of its own,
/// since `base` was redistributed for it.
void note_copied_from(const at::Tensor& view, const at::Tensor& base);

/// Throws if `self` is a view that is a copy: operator `name` would write to
/// the copy alone.
void refuse_write_to_copy(const std::string& name, const at::Tensor& self);

} // namespace dtensor::detail

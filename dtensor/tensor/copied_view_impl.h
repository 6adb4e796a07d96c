// SPDX-License-Identifier: BSD-3-Clause
// Views that are copies. A view for which a tensor had to be redistributed,
// conjugated or copied does not alias the local tensor. The copy is out of date
// after a write to the tensor; operators and redistributions copy the values
// again before they read it. Writes to the copy are carried over to the tensor
// (ops/variants/write_through.cpp). Neither is done for conjugated values.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>
#include <dtensor/api.h>
#include <dtensor/layout/spec.h>

#include <utility>

namespace dtensor::detail {

/// The reason why a view has its own memory.
enum class CopyReason : uint8_t { kRedistributed, kConjugated, kCopied };

/// Describes the viewed tensor for an error message.
const char* describe_viewed_tensor(CopyReason reason);

/// A tensor, and the position of the elements in the corresponding plain
/// tensor.
struct PlacedTensor {
  at::Tensor local;
  SpecPtr spec;
  int64_t offset; // in the storage of the plain tensor
};

/// The origin of a view that is a copy. Detects whether the viewed tensor, the
/// base, was written after the copy. Views that share memory with the copy
/// share this object.
struct DTENSOR_INTERNAL_API CopiedFrom final : c10::intrusive_ptr_target {
  CopiedFrom(
      c10::VariableVersion counter,
      CopyReason why,
      PlacedTensor base_tensor,
      PlacedTensor copied);
  CopiedFrom(const CopiedFrom&) = delete;
  CopiedFrom& operator=(const CopiedFrom&) = delete;
  CopiedFrom(CopiedFrom&&) = delete;
  CopiedFrom& operator=(CopiedFrom&&) = delete;
  ~CopiedFrom() override;
  bool is_written() const {
    const auto now = writes.current_version();
    return now != seen && now != seen_next;
  }
  /// Marks the copy as up to date. With `is_counted_again`, an autograd kernel
  /// counts the current write once more.
  void note_up_to_date(bool is_counted_again) {
    seen = writes.current_version();
    seen_next = seen + (is_counted_again ? 1 : 0);
  }

  c10::VariableVersion writes;
  uint32_t seen;
  uint32_t seen_next;
  CopyReason reason;
  PlacedTensor base; // its local tensor is undefined if it cannot be written
  PlacedTensor copy;
};
using CopiedFromPtr = c10::intrusive_ptr<CopiedFrom>;

/// True if this process has a view that is a copy.
bool copied_views_exist();

/// Returns true if several indices may refer to the same element, as in an
/// expanded tensor and in windows that overlap. On the plain tensor, an
/// operator would write such an element once for each index, but a copy has
/// several elements for it.
bool may_overlap(at::IntArrayRef sizes, at::IntArrayRef strides);

/// Returns true if bring_up_to_date() can copy the values of the base again.
bool can_bring_up_to_date(const CopiedFrom& from);

/// Rarely needed facts about views, attached to some DTensors.
struct ViewFacts final : c10::intrusive_ptr_target {
  /// Set on a view with its own memory, which is valid until the viewed tensor
  /// is written.
  CopiedFromPtr copied_from;
  /// Counts writes to an inference tensor with views, which has no version
  /// counter. Also counts writes to a parameter of a fully_shard unit,
  /// including those through `data()`. Shared by all views.
  c10::VariableVersion writes;
};

} // namespace dtensor::detail

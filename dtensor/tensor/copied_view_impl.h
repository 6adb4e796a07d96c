// SPDX-License-Identifier: BSD-3-Clause
// Views that are copies: what a tensor had to be redistributed, conjugated or
// copied for is no view of its local tensors. It is as good as one until
// somebody writes to it or to that tensor.
#pragma once

#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>

namespace dtensor::detail {

/// Why a view has memory of its own.
enum class CopyReason : uint8_t { kRedistributed, kConjugated, kCopied };

/// What such a view was taken of, as words of a message.
const char* what_was_viewed(CopyReason reason);

/// Of a view that is a copy: sees whether what it was taken of was written
/// since.
struct CopiedFrom final : c10::intrusive_ptr_target {
  CopiedFrom(c10::VariableVersion counter, CopyReason why)
      : writes(std::move(counter)),
        seen(writes.current_version()),
        reason(why) {}
  bool is_written() const {
    return writes.current_version() != seen;
  }

  c10::VariableVersion writes;
  uint32_t seen;
  CopyReason reason;
};
using CopiedFromPtr = c10::intrusive_ptr<const CopiedFrom>;

/// What few DTensors have to know of views.
struct ViewFacts final : c10::intrusive_ptr_target {
  /// Of a view by name, whose memory is its own: as good as a view until
  /// somebody writes to it or to what it was taken of.
  CopiedFromPtr copied_from;
  /// Counts the writes to an inference tensor that has views, since it has no
  /// version counter, and those to a parameter of a unit, by `data()` too;
  /// shared by the views.
  c10::VariableVersion writes;
};

} // namespace dtensor::detail

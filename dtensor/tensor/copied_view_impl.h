// SPDX-License-Identifier: BSD-3-Clause
// Views that are copies. A view for which a tensor had to be redistributed,
// conjugated or copied does not alias the local tensor. The copy is a valid
// view until either tensor is written.
#pragma once

#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>

namespace dtensor::detail {

/// The reason why a view has its own memory.
enum class CopyReason : uint8_t { kRedistributed, kConjugated, kCopied };

/// Describes the viewed tensor for an error message.
const char* describe_viewed_tensor(CopyReason reason);

/// The origin of a view that is a copy. Detects whether the viewed tensor was
/// written after the copy.
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

/// Rarely needed facts about views, attached to some DTensors.
struct ViewFacts final : c10::intrusive_ptr_target {
  /// Set on a view with its own memory, which is valid until the view or the
  /// viewed tensor is written.
  CopiedFromPtr copied_from;
  /// Counts writes to an inference tensor with views, which has no version
  /// counter. Also counts writes to a parameter of a fully_shard unit,
  /// including those through `data()`. Shared by all views.
  c10::VariableVersion writes;
};

} // namespace dtensor::detail

// SPDX-License-Identifier: BSD-3-Clause
// Notifications before operators redistribute operands: checked by
// ExplicitRedistributionContext, counted by on_missing_rule().
#pragma once

#include <dtensor/ops/path/op_info_impl.h>

#include <string_view>

namespace dtensor::detail {

/// Reports a decision that redistributes operands, before they are brought to
/// their layouts. Ranks outside the mesh call it, too, so that all ranks throw.
void before_redistributing(
    const OpInfo& info,
    const Decision& decision,
    c10::ArrayRef<c10::IValue> args);

/// Reports one operand of a kernel that redistributes it by itself.
void before_redistributing(
    std::string_view op,
    const char* argument,
    const SpecPtr& from,
    PlacementsRef to);

} // namespace dtensor::detail

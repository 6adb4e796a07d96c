// SPDX-License-Identifier: BSD-3-Clause
// Notifications before operators redistribute operands.
// ExplicitRedistributionContext checks them, and on_missing_rule() counts them.
#pragma once

#include <dtensor/ops/path/op_info_impl.h>

#include <string_view>

namespace dtensor::detail {

/// Reports a decision that redistributes operands, before the redistribution.
/// Ranks outside the mesh call this function, too, so that all ranks throw.
void before_redistributing(
    const OpInfo& info,
    const Decision& decision,
    c10::ArrayRef<c10::IValue> args);

/// Reports an operand that a kernel redistributes by itself.
void before_redistributing(
    std::string_view op,
    const char* argument,
    const SpecPtr& from,
    PlacementsRef to);

} // namespace dtensor::detail

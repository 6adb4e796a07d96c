// SPDX-License-Identifier: BSD-3-Clause
// Where operators say that they are about to redistribute operands: watched by
// ExplicitRedistributionContext, counted by on_missing_rule().
#pragma once

#include <dtensor/ops/op_info_impl.h>

#include <string_view>

namespace dtensor::detail {

/// To be called before the operands of a call with a decision that
/// redistributes some are brought to their layouts, on ranks outside the mesh
/// too: all of them throw.
void before_redistributing(
    const OpInfo& info,
    const Decision& decision,
    c10::ArrayRef<c10::IValue> args);

/// The same for one operand of a kernel that redistributes it by itself.
void before_redistributing(
    std::string_view op,
    const char* argument,
    const SpecPtr& from,
    PlacementsRef to);

} // namespace dtensor::detail

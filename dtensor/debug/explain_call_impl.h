// SPDX-License-Identifier: BSD-3-Clause
// Explanation of a call from its arguments.
#pragma once

#include <dtensor/debug/explain.h>
#include <dtensor/ops/path/op_info_impl.h>
#include <dtensor/ops/propagate.h>

#include <string>

namespace dtensor::detail {

/// Predicts the decision for this call, which must have a DTensor argument. The
/// result layouts are predicted too. If the call would throw, the note holds
/// the error.
ExplainedCall explain_call(const OpInfo& info, c10::ArrayRef<c10::IValue> args);

/// Explains for each strategy why it is taken or not. `written` is the name of
/// the argument that is written in place, or "".
ExplainedMeshDim explain_choice(
    const Choice& choice,
    const std::string& mesh_dim,
    const std::string& written);

} // namespace dtensor::detail

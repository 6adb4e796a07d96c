// SPDX-License-Identifier: BSD-3-Clause
// From the arguments of a call to what there is to say of it.
#pragma once

#include <dtensor/debug/explain.h>
#include <dtensor/ops/op_info_impl.h>
#include <dtensor/ops/propagate.h>

#include <string>

namespace dtensor::detail {

/// What will be decided about this call, of which a DTensor is an argument; its
/// results are those decided. What the call would throw is in the note.
ExplainedCall explain_call(const OpInfo& info, c10::ArrayRef<c10::IValue> args);

/// Says of each strategy why it is taken or not. `written` is the name of the
/// argument that is written in place, "" for none.
ExplainedMeshDim explain_choice(
    const Choice& choice,
    const std::string& mesh_dim,
    const std::string& written);

} // namespace dtensor::detail

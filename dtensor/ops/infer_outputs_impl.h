// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <dtensor/ops/op_call.h>
#include <dtensor/ops/op_info_impl.h>

#include <optional>
#include <vector>

namespace dtensor::detail {

/// Global shapes of the results: the operator on meta tensors. Nothing if it
/// has no meta kernel.
std::optional<std::vector<OutputMeta>> infer_outputs(
    const OpInfo& info,
    const OpCall& call);

} // namespace dtensor::detail

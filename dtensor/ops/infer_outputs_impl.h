// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <dtensor/ops/op_call.h>
#include <dtensor/ops/op_info_impl.h>

#include <optional>
#include <vector>

namespace dtensor::detail {

/// Returns the global shapes of the results by running the operator on meta
/// tensors. Empty if it has no meta kernel.
std::optional<std::vector<OutputMeta>> infer_outputs(
    const OpInfo& info,
    const OpCall& call);

} // namespace dtensor::detail

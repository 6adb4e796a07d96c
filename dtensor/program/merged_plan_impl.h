// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <dtensor/program/plan_text.h>

#include <vector>

namespace torch::nn {
class Module;
}

namespace dtensor::detail {

/// Merges lines that are equal in all layers of `root`, where numbers stand for
/// layers: "layers.*.fc" for "layers.0.fc" and "layers.1.fc".
std::vector<PlanEntryText> merged_plan(
    const std::vector<PlanEntryText>& lines,
    const torch::nn::Module& root);

} // namespace dtensor::detail

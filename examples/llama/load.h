// SPDX-License-Identifier: BSD-3-Clause
// A model from files.
#pragma once

#include "model.h"

#include <dtensor/dtensor.h>

namespace llama {

/// How load_weights() finds a Llama in `file`, which may be null.
dtensor::LoadWeightsOptions load_options(const dtensor::WeightFilePtr& file);

/// A model whose parameters this rank of `mesh` has its parts of, from `file`;
/// random ones without a file, the same on any number of ranks.
Llama make_model(
    const Config& config,
    const dtensor::DeviceMesh& mesh,
    const dtensor::WeightFilePtr& file);

} // namespace llama

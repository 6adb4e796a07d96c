// SPDX-License-Identifier: BSD-3-Clause
// Loads a model from files.
#pragma once

#include "model.h"

#include <dtensor/dtensor.h>

namespace llama {

/// Returns the names for load_weights() of a Llama in `file`, which may be
/// null.
dtensor::LoadWeightsOptions load_options(const dtensor::WeightFilePtr& file);

/// Returns a model sharded over `mesh`, loaded from `file`. Without a file, the
/// model is random, and equal for any number of ranks.
Llama make_model(
    const Config& config,
    const dtensor::DeviceMesh& mesh,
    const dtensor::WeightFilePtr& file);

} // namespace llama

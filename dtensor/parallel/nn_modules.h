// SPDX-License-Identifier: BSD-3-Clause
// Modules of torch::nn that have no parameters, declared with hooks so that
// styles can act on them: dtensor::hooked::Dropout replaces torch::nn::Dropout,
// and dtensor::hooked::LayerNorm replaces a LayerNorm without
// elementwise_affine.
//
// The namespace is not called nn, since programs often use that name for
// torch::nn.
#pragma once

#include <dtensor/parallel/module_hooks.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

namespace dtensor::hooked {

DTENSOR_MODULE_IMPL(Dropout, torch::nn::DropoutImpl);
DTENSOR_MODULE_IMPL(LayerNorm, torch::nn::LayerNormImpl);

} // namespace dtensor::hooked

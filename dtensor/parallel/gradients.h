// SPDX-License-Identifier: BSD-3-Clause
// What a training step does with gradients before the optimizer: averages them
// over ranks that saw other data, and clips their norm, for plain parameters
// and DTensors side by side.
//
//   loss.backward();
//   average_gradients(model->parameters(), mesh["dp"]);
//   clip_grad_norm_(model->parameters(), 1.0);
//   optimizer.step();
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <dtensor/api.h>
#include <dtensor/layout/mesh.h>

#include <vector>

namespace dtensor {

/// Every gradient becomes its average over the ranks of `mesh`, whose ranks
/// have the same part of each parameter and computed on other data: data
/// parallelism beside tensor parallelism. One all-reduce for each dtype.
/// Parameters without a gradient are left out, on all ranks alike.
/// Throws ValueError for a mesh of several dimensions, and for a parameter that
/// is spread over ranks of `mesh`, whose gradient is summed over them already.
/// Python: torch.nn.parallel.DistributedDataParallel does it in the backward
/// pass.
DTENSOR_API void average_gradients(
    at::TensorList parameters,
    const DeviceMesh& mesh);

/// The norm of all gradients as one vector, which they are scaled down to
/// `max_norm` by: torch::nn::utils::clip_grad_norm_, which takes parameters
/// that are all plain or all distributed, for both side by side and on meshes
/// of any sort. A plain gradient is taken to be the same on every rank. One
/// all-reduce for each set of ranks that parameters are cut over. `norm_type`
/// is positive; infinity is the largest magnitude.
/// Throws RuntimeError for a norm that is no number or infinite if
/// `error_if_nonfinite`, ValueError for another norm_type.
/// Python: torch.nn.utils.clip_grad_norm_.
DTENSOR_API double clip_grad_norm_(
    at::TensorList parameters,
    double max_norm,
    double norm_type = 2,
    bool error_if_nonfinite = false);

} // namespace dtensor

// SPDX-License-Identifier: BSD-3-Clause
// Gradient processing between backward pass and optimizer step, for plain
// parameters and DTensors alike: averaging over data-parallel ranks, and
// clipping by norm.
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

/// Averages every gradient over the ranks of `mesh`, for data parallelism,
/// possibly combined with tensor parallelism. These ranks must hold the same
/// local shard of each parameter and compute on different data. Takes one
/// all-reduce per dtype. Skips parameters without a gradient, which must be the
/// same parameters on all ranks.
/// Throws ValueError for a mesh of several dimensions, and for a parameter that
/// is distributed over ranks of `mesh`, because its gradient is already summed
/// over them.
/// Python: torch.nn.parallel.DistributedDataParallel does this in the backward
/// pass.
DTENSOR_API void average_gradients(
    at::TensorList parameters,
    const DeviceMesh& mesh);

/// Scales gradients so that their total norm is at most `max_norm`, and returns
/// the norm before scaling. Unlike torch::nn::utils::clip_grad_norm_, accepts
/// plain parameters and DTensors on any meshes together. Plain gradients must
/// be the same on every rank. Takes one all-reduce per set of ranks that
/// parameters are sharded over. `norm_type` must be positive; infinity is the
/// maximum norm.
/// With `error_if_nonfinite`, throws RuntimeError if the norm is NaN or
/// infinite. Throws ValueError if norm_type is not positive, and on a rank
/// outside the mesh of a gradient, if the rank has other gradients.
/// Python: torch.nn.utils.clip_grad_norm_.
DTENSOR_API double clip_grad_norm_(
    at::TensorList parameters,
    double max_norm,
    double norm_type = 2,
    bool error_if_nonfinite = false);

} // namespace dtensor

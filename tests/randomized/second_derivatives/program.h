// SPDX-License-Identifier: BSD-3-Clause
// Program: a differentiable function with the same meaning on plain tensors and
// on DTensors. Random choices are drawn in advance, so both runs and all ranks
// agree.
#pragma once

#include <dtensor/layout/mesh.h>
#include <dtensor/layout/placement.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/randomized/harness/place.h"
#include "tests/randomized/harness/random.h"

namespace dtensor::second_derivatives {

using randomized::place;
using randomized::Random;
using Tensors = std::vector<at::Tensor>;

struct Results {
  Tensors values;
  /// Leaves besides the operands: parameters that the program creates.
  Tensors parameters;
};

struct Program {
  /// Name of the computation, without layouts.
  std::string name;
  Tensors operands;
  std::vector<Placements> layouts; // of the operands
  /// Runs the program. `mesh` is null if the operands are plain.
  std::function<Results(const Tensors& operands, const DeviceMesh* mesh)> run;
};

/// Draws one operator, with arguments from its schema.
Program
draw_operator(const std::string& op, const std::vector<int64_t>& mesh, Random&);

/// Draws redistributions and conversions between DTensors and local tensors,
/// with and without grad_placements.
Program draw_steps(const std::vector<int64_t>& mesh, Random&);

/// Draws modules under parallel styles, on one dimension of the mesh.
Program draw_style(const std::vector<int64_t>& mesh, Random&);

/// Draws modules under the styles of PyTorch 2.0, on a mesh of one dimension.
Program draw_torch_2_0(const std::vector<int64_t>& mesh, Random&);

/// Draws attention: under styles, in torch::nn's layers, and on a sharded
/// sequence.
Program draw_attention(const std::vector<int64_t>& mesh, Random&);

/// Draws cross entropy, with and without loss_parallel, of logits and of
/// networks under styles.
Program draw_loss(const std::vector<int64_t>& mesh, Random&);

/// Draws a layout for a tensor of `ndim` dimensions: half of the time a single
/// shard or Partial, otherwise any.
Placements draw_layout(
    int64_t ndim,
    bool may_be_partial,
    const std::vector<int64_t>& mesh,
    Random&);

/// Returns a replicated DTensor of a tensor that is already equal on every
/// rank.
at::Tensor replicated(const at::Tensor& full, const DeviceMesh& mesh);

/// Returns uniform float64 numbers in (-1, 1), equal on every rank.
at::Tensor uniform(at::IntArrayRef sizes, uint64_t seed);

} // namespace dtensor::second_derivatives

// SPDX-License-Identifier: BSD-3-Clause
// Program: something differentiable that runs on plain tensors and on DTensors
// and means the same. What is drawn for it is drawn beforehand, so both runs
// and all ranks do the same.
#pragma once

#include <dtensor/layout/mesh.h>
#include <dtensor/layout/placement.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/property/arguments.h"

namespace dtensor::second_derivatives {

using property::Random;
using Tensors = std::vector<at::Tensor>;

struct Results {
  Tensors values;
  /// Leaves beside the operands: parameters that the program made itself.
  Tensors parameters;
};

struct Program {
  /// What it computes, layouts left out.
  std::string name;
  Tensors operands;
  std::vector<Placements> layouts; // of the operands
  /// `mesh` is null where the operands are plain.
  std::function<Results(const Tensors& operands, const DeviceMesh* mesh)> run;
};

/// One operator, with arguments drawn from its schema.
Program
draw_operator(const std::string& op, const std::vector<int64_t>& mesh, Random&);

/// Steps between layouts and between DTensors and local tensors, with and
/// without grad_placements.
Program draw_steps(const std::vector<int64_t>& mesh, Random&);

/// Modules under parallel styles, on one dimension of the mesh.
Program draw_style(const std::vector<int64_t>& mesh, Random&);

/// Under those of PyTorch 2.0, on a mesh of one dimension.
Program draw_torch_2_0(const std::vector<int64_t>& mesh, Random&);

/// Attention: under styles, in torch::nn's layers, and over a cut sequence.
Program draw_attention(const std::vector<int64_t>& mesh, Random&);

/// Cross entropy, with loss_parallel and without, of logits and of networks
/// under styles.
Program draw_loss(const std::vector<int64_t>& mesh, Random&);

/// The operators that draw_operator() may draw: those that have rules.
std::vector<std::string> operators(const std::string& only);

/// A layout for a tensor of that many dimensions: half of the time one cut or
/// Partial and nothing else, else anything.
Placements draw_layout(
    int64_t ndim,
    bool may_be_partial,
    const std::vector<int64_t>& mesh,
    Random&);

/// `full` in that layout; terms of a Partial differ between ranks.
at::Tensor
place(const at::Tensor& full, const DeviceMesh& mesh, PlacementsRef layout);

/// Replicated, the same on every rank already.
at::Tensor replicated(const at::Tensor& full, const DeviceMesh& mesh);

/// Uniform in (-1, 1), float64, the same on every rank.
at::Tensor uniform(at::IntArrayRef sizes, uint64_t seed);

} // namespace dtensor::second_derivatives

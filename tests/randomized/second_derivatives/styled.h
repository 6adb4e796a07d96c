// SPDX-License-Identifier: BSD-3-Clause
// Styled: a module and its parallel style, from which a Program is made.
#pragma once

#include <dtensor/parallel/style.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "program.h"

namespace dtensor::second_derivatives {

struct Styled {
  std::string name;
  std::function<torch::nn::Sequential()> make;
  ParallelizePlan plan;
  Placement input;  // layout of a local input
  Placement output; // layout of a local output
  bool local_output = true;
  /// True if torch_2_0::parallelize_module() applies the style.
  bool as_in_2_0 = false;
};

/// Drawn sizes of a style's module.
struct Sizes {
  int64_t ndim;
  int64_t in;
  int64_t hidden;
  int64_t out;
  bool bias;
};

Sizes draw_sizes(Random&);

/// Draws the input's sizes except the last.
std::vector<int64_t> draw_rows(const Sizes&, Random&);

torch::nn::Linear linear(int64_t in, int64_t out, bool bias);

/// Draws a Shard of any dimension, or Replicate.
Placement draw_output(int64_t ndim, Random&);

/// Fills the module with float64 parameters drawn from `seed`.
torch::nn::Sequential filled(torch::nn::Sequential module, uint64_t seed);

/// Form of the input.
struct Given {
  bool local = false;
  /// Mesh dimension of the styles, if the mesh has two.
  int64_t mesh_dim = 0;
};

Given draw_given(const std::vector<int64_t>& mesh, Random&);

Program program_of(
    Styled styled,
    const at::Tensor& input,
    std::vector<int64_t> output_sizes,
    Given given,
    uint64_t seed);

} // namespace dtensor::second_derivatives

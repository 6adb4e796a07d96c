// SPDX-License-Identifier: BSD-3-Clause
// Styled: a module and how it is made parallel, of which a Program comes.
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
  Placement input;  // of a local input
  Placement output; // of a local output
  bool local_output = true;
  /// By torch_2_0::parallelize_module().
  bool as_in_2_0 = false;
};

/// What a style's module is drawn to have.
struct Sizes {
  int64_t ndim;
  int64_t in;
  int64_t hidden;
  int64_t out;
  bool bias;
};

Sizes draw_sizes(Random&);

/// The input's sizes but for the last.
std::vector<int64_t> draw_rows(const Sizes&, Random&);

torch::nn::Linear linear(int64_t in, int64_t out, bool bias);

/// S of any dimension, or R.
Placement draw_output(int64_t ndim, Random&);

/// The module with parameters drawn from `seed`, float64.
torch::nn::Sequential filled(torch::nn::Sequential module, uint64_t seed);

/// How its input comes.
struct Given {
  bool local = false;
  /// Of a mesh of two: the dimension that the styles are about.
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

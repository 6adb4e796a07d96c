// SPDX-License-Identifier: BSD-3-Clause
#include "styled.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>
#include <dtensor/contrib/legacy_tp/torch_2_0.h>
#include <dtensor/tensor/dtensor.h>

#include <utility>

namespace dtensor::second_derivatives {
namespace {

// Returns the style's result as a DTensor.
at::Tensor as_dtensor(
    const at::Tensor& y,
    const Styled& styled,
    const DeviceMesh& mesh,
    const std::vector<int64_t>& sizes) {
  if (is_dtensor(y)) {
    return y;
  }
  FromLocalOptions options;
  options.shape = sizes;
  return DTensor::from_local(y, mesh, {styled.output}, options);
}

void parallelize(
    torch::nn::Module& module,
    const Styled& styled,
    const DeviceMesh& mesh,
    int64_t dim) {
  if (styled.as_in_2_0) {
    torch_2_0::parallelize_module(module, mesh, styled.plan);
  } else if (mesh.ndim() == 1) {
    parallelize_module(module, mesh, styled.plan);
  } else {
    const auto& name = mesh.mesh_dim_names()[static_cast<size_t>(dim)];
    parallelize_module(
        module,
        mesh[name],
        styled.plan,
        {.keep_dtensors = true, .root_mesh = mesh});
  }
}

} // namespace

Sizes draw_sizes(Random& random) {
  return {
      2 + random.below(2),
      2 + random.below(5),
      2 + random.below(5),
      2 + random.below(5),
      random.chance(60)};
}

std::vector<int64_t> draw_rows(const Sizes& s, Random& random) {
  std::vector<int64_t> rows;
  for (int64_t d = 0; d + 1 < s.ndim; ++d) {
    rows.push_back(2 + random.below(4));
  }
  return rows;
}

torch::nn::Linear linear(int64_t in, int64_t out, bool bias) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(bias));
}

Placement draw_output(int64_t ndim, Random& random) {
  const auto kind = random.below(ndim + 2);
  return kind < ndim ? Placement(Shard(kind)) : Replicate();
}

Given draw_given(const std::vector<int64_t>& mesh, Random& random) {
  const bool two = mesh.size() == 2;
  return {!two && random.chance(50), two ? random.below(2) : 0};
}

torch::nn::Sequential filled(torch::nn::Sequential module, uint64_t seed) {
  const c10::NoGradGuard no_grad;
  module->to(at::kDouble);
  for (auto& parameter : module->parameters()) {
    parameter.copy_(uniform(parameter.sizes(), seed++));
  }
  return module;
}

Program program_of(
    Styled styled,
    const at::Tensor& input,
    std::vector<int64_t> output_sizes,
    Given given,
    uint64_t seed) {
  Program program;
  program.name = c10::str(
      styled.name,
      styled.local_output ? ", local" : "",
      given.local ? ", local input" : "",
      given.mesh_dim > 0 ? ", on the second dimension" : "");
  program.operands = {input};
  program.run = [=](const Tensors& operands, const DeviceMesh* mesh) {
    auto module = filled(styled.make(), seed);
    at::Tensor x = operands[0];
    if (mesh != nullptr) {
      parallelize(*module, styled, *mesh, given.mesh_dim);
      if (given.local) {
        x = to_local(DTensor(x).redistribute({styled.input}));
      }
    }
    auto y = module->forward(x);
    if (mesh != nullptr) {
      y = as_dtensor(y, styled, *mesh, output_sizes);
    }
    return Results{{y}, module->parameters()};
  };
  return program;
}

} // namespace dtensor::second_derivatives

// SPDX-License-Identifier: BSD-3-Clause
// Modules under the styles of PyTorch 2.0, on a mesh of one dimension.
#include <dtensor/contrib/legacy_tp/torch_2_0.h>
#include <dtensor/layout/text.h>
#include <torch/nn/modules/activation.h>

#include "styled.h"

namespace dtensor::second_derivatives {
namespace {

namespace tp = dtensor::torch_2_0;

// Returns an MLP with Linears as children of one module.
torch::nn::Sequential net(const Sizes& s) {
  return torch::nn::Sequential(
      linear(s.in, s.hidden, s.bias),
      torch::nn::Tanh(),
      linear(s.hidden, s.out, s.bias));
}

Styled pairwise(const Sizes& s, Random& random) {
  const Placement input = random.chance(50) ? Placement(Shard(0)) : Replicate();
  const Placement output =
      random.chance(50) ? Placement(Shard(0)) : Replicate();
  const bool local = random.chance(50);
  return {
      "Pairwise from " + to_string(input) + " to " + to_string(output),
      [s] { return net(s); },
      {{"",
        tp::PairwiseParallel(
            {.input_layouts = input,
             .output_layouts = output,
             .use_local_output = local})}},
      input,
      output,
      local,
      /*as_in_2_0=*/true};
}

Styled sequence(const Sizes& s, Random& /*random*/) {
  return {
      "SequenceParallel of 2.0",
      [s] { return net(s); },
      {{"", tp::SequenceParallel()}},
      Shard(0),
      Shard(0),
      /*local_output=*/true,
      /*as_in_2_0=*/true};
}

// Values between the layers are DTensors.
Styled columns_and_rows(const Sizes& s, Random& random) {
  const auto input = draw_output(s.ndim, random);
  const auto inner = draw_output(s.ndim, random);
  const auto output = draw_output(s.ndim, random);
  const bool local = random.chance(50);
  return {
      "Colwise of 2.0 to " + to_string(inner) + ", tanh, Rowwise to " +
          to_string(output),
      [s] { return net(s); },
      {{"0",
        tp::ColwiseParallel({.input_layouts = input, .output_layouts = inner})},
       {"2",
        tp::RowwiseParallel(
            {.output_layouts = output, .use_local_output = local})}},
      input,
      output,
      local,
      /*as_in_2_0=*/true};
}

} // namespace

Program draw_torch_2_0(const std::vector<int64_t>& mesh, Random& random) {
  const auto seed = static_cast<uint64_t>(random.below(1 << 20));
  const auto s = draw_sizes(random);
  auto shape = draw_rows(s, random);
  auto output_sizes = shape;
  shape.push_back(s.in);
  output_sizes.push_back(s.out);
  using Draw = Styled (*)(const Sizes&, Random&);
  static const std::vector<Draw> draws = {pairwise, columns_and_rows, sequence};
  const auto draw = random.one_of(draws);
  const auto given = draw_given(mesh, random);
  auto program = program_of(
      draw(s, random), uniform(shape, seed + 50), output_sizes, given, seed);
  program.layouts = {draw_layout(s.ndim, true, mesh, random)};
  return program;
}

} // namespace dtensor::second_derivatives

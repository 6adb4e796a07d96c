// SPDX-License-Identifier: BSD-3-Clause
// Compares modules under parallel styles with the plain modules. Besides the
// input, the parameters are leaves.
#include <ATen/CPUGeneratorImpl.h>
#include <dtensor/layout/text.h>
#include <dtensor/parallel/linear_styles.h>
#include <dtensor/parallel/module_hooks.h>
#include <dtensor/parallel/prepare_module.h>
#include <dtensor/parallel/sequence_parallel.h>
#include <dtensor/tensor/dtensor.h>
#include <torch/torch.h>

#include "styled.h"

namespace dtensor::second_derivatives {
namespace {

struct GateImpl : torch::nn::Module {
  at::Tensor forward(at::Tensor x) {
    return at::tanh(x) * x;
  }
};
DTENSOR_MODULE(Gate);

Styled colwise(const Sizes& s, Random& random) {
  const auto input = draw_output(s.ndim, random);
  const auto output = draw_output(s.ndim, random);
  const bool local = random.chance(50);
  return {
      c10::str("Colwise to ", to_string(output)),
      [s] { return torch::nn::Sequential(linear(s.in, s.out, s.bias)); },
      {{"0",
        ColwiseParallel(
            {.input_layouts = input,
             .output_layouts = output,
             .use_local_output = local})}},
      input,
      output,
      local};
}

Styled rowwise(const Sizes& s, Random& random) {
  const auto input = draw_output(s.ndim, random);
  const auto output = draw_output(s.ndim, random);
  const bool local = random.chance(50);
  const auto chunks = 1 + random.below(3);
  return {
      c10::str("Rowwise to ", to_string(output), " in ", chunks),
      [s] { return torch::nn::Sequential(linear(s.in, s.out, s.bias)); },
      {{"0",
        RowwiseParallel(
            {.input_layouts = input,
             .output_layouts = output,
             .use_local_output = local,
             .overlap_chunks = chunks})}},
      input,
      output,
      local};
}

Styled mlp(const Sizes& s, Random& random) {
  const auto output = draw_output(s.ndim, random);
  const auto input = draw_output(s.ndim, random);
  const bool inner = random.chance(50);
  const bool local = random.chance(50);
  return {
      c10::str("Colwise, tanh, Rowwise to ", to_string(output)),
      [s] {
        return torch::nn::Sequential(
            linear(s.in, s.hidden, s.bias),
            torch::nn::Tanh(),
            linear(s.hidden, s.out, s.bias));
      },
      {{"0",
        ColwiseParallel({.input_layouts = input, .use_local_output = inner})},
       {"2",
        RowwiseParallel(
            {.output_layouts = output, .use_local_output = local})}},
      input,
      output,
      local};
}

Styled norm(const Sizes& s, Random& random) {
  const auto dim = random.below(s.ndim - 1);
  const auto output = draw_output(s.ndim, random);
  const bool local = random.chance(50);
  const bool inner = random.chance(50);
  return {
      c10::str("SequenceParallel(", dim, "), Colwise to ", to_string(output)),
      [s] {
        return torch::nn::Sequential(
            torch::nn::LayerNorm(torch::nn::LayerNormOptions({s.in})),
            linear(s.in, s.out, s.bias));
      },
      {{"0",
        SequenceParallel({.sequence_dim = dim, .use_local_output = inner})},
       {"1",
        ColwiseParallel(
            {.input_layouts = Shard(dim),
             .output_layouts = output,
             .use_local_output = local})}},
      Shard(dim),
      output,
      local};
}

Styled prepared(const Sizes& s, Random& random) {
  const auto input = draw_output(s.ndim, random);
  const auto desired = draw_output(s.ndim, random);
  const auto output = draw_output(s.ndim, random);
  const bool local_input = random.chance(50);
  const bool local = random.chance(50);
  return {
      c10::str(
          "PrepareModuleInputOutput ",
          to_string(input),
          " to ",
          to_string(desired),
          local_input ? " local" : "",
          " to ",
          to_string(output)),
      [] { return torch::nn::Sequential(Gate()); },
      {{"0",
        PrepareModuleInputOutput(
            {.input_layouts = {input},
             .desired_input_layouts = {desired},
             .use_local_input = local_input,
             .output_layouts = {desired},
             .desired_output_layouts = {output},
             .use_local_output = local})}},
      input,
      output,
      local};
}

Styled embedding(const Sizes& s, Random& random) {
  const auto output = draw_output(2, random);
  const bool local = random.chance(50);
  const bool rows = random.chance(60);
  ParallelizePlan plan;
  if (rows) {
    plan.emplace_back(
        "0",
        RowwiseParallel(
            {.input_layouts = Replicate(),
             .output_layouts = output,
             .use_local_output = local}));
  } else {
    plan.emplace_back(
        "0",
        ColwiseParallel({.output_layouts = output, .use_local_output = local}));
  }
  return {
      c10::str(
          rows ? "Rowwise" : "Colwise", " Embedding to ", to_string(output)),
      [s] { return torch::nn::Sequential(torch::nn::Embedding(7, s.out)); },
      std::move(plan),
      Replicate(),
      output,
      local};
}

} // namespace

Program draw_style(const std::vector<int64_t>& mesh, Random& random) {
  const auto seed = static_cast<uint64_t>(random.below(1 << 20));
  const auto s = draw_sizes(random);
  auto shape = draw_rows(s, random);
  auto output_sizes = shape;
  shape.push_back(s.in);
  output_sizes.push_back(s.out);
  using Draw = Styled (*)(const Sizes&, Random&);
  static const std::vector<Draw> draws = {
      colwise, rowwise, rowwise, mlp, mlp, norm, prepared, embedding};
  const auto draw = random.one_of(draws);
  const auto given = draw_given(mesh, random);
  if (draw == embedding) {
    const std::vector<int64_t> ids = {2 + random.below(4)};
    auto generator = at::detail::createCPUGenerator(seed);
    auto program = program_of(
        embedding(s, random),
        at::randint(0, 7, ids, generator, at::kLong),
        {ids[0], s.out},
        given,
        seed);
    program.layouts = {draw_layout(1, false, mesh, random)};
    return program;
  }
  auto program = program_of(
      draw(s, random),
      uniform(shape, seed + 50),
      draw == prepared ? shape : output_sizes,
      given,
      seed);
  program.layouts = {draw_layout(s.ndim, true, mesh, random)};
  return program;
}

} // namespace dtensor::second_derivatives

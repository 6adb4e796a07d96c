// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randint.h>
#include <c10/util/StringUtil.h>
#include <dtensor/parallel/linear_styles.h>
#include <dtensor/parallel/loss_parallel.h>
#include <torch/nn/modules/activation.h>

#include <memory>

#include "styled.h"

namespace dtensor::second_derivatives {
namespace {

// Cross entropy of logits of a drawn shape.
struct Loss {
  std::vector<int64_t> shape;
  int64_t class_dim;
  at::Tensor target;
  at::Tensor weight; // undefined: none
  int64_t reduction;
  int64_t ignored;
  double smoothing;
  bool parallel;

  std::string text() const {
    return c10::str(
        parallel ? "loss_parallel " : "",
        "cross_entropy, reduction ",
        reduction,
        weight.defined() ? ", weight" : "",
        ignored == 0 ? ", ignore 0" : "",
        smoothing > 0 ? ", smoothing" : "");
  }
  at::Tensor of(const at::Tensor& logits, const DeviceMesh* on) const {
    const auto as_operand = [&](const at::Tensor& t) {
      return on == nullptr ? t : replicated(t, *on);
    };
    const auto guard =
        on != nullptr && parallel ? std::make_unique<LossParallel>() : nullptr;
    return at::cross_entropy_loss(
        logits,
        as_operand(target),
        weight.defined() ? std::optional(as_operand(weight)) : std::nullopt,
        reduction,
        ignored,
        smoothing);
  }
};

Loss loss_of(std::vector<int64_t> shape, uint64_t seed, Random& random) {
  Loss loss;
  loss.class_dim = shape.size() == 1 ? 0 : 1;
  const auto classes = shape[static_cast<size_t>(loss.class_dim)];
  auto target_sizes = shape;
  target_sizes.erase(target_sizes.begin() + loss.class_dim);
  auto generator = at::detail::createCPUGenerator(seed);
  loss.target = at::randint(0, classes, target_sizes, generator, at::kLong);
  if (random.chance(30)) {
    loss.weight = uniform({classes}, seed + 1).abs() + 0.1;
  }
  loss.reduction = random.below(3);
  loss.ignored = random.chance(30) ? int64_t{0} : int64_t{-100};
  loss.smoothing = random.chance(40) ? 0.3 : 0;
  loss.parallel = random.chance(70);
  loss.shape = std::move(shape);
  return loss;
}

Program of_logits(const std::vector<int64_t>& mesh, Random& random) {
  std::vector<int64_t> shape = {1 + random.below(6), 2 + random.below(6)};
  if (random.chance(30)) {
    shape.push_back(1 + random.below(3));
  }
  if (random.chance(10)) {
    shape = {shape[1]};
  }
  const auto seed = static_cast<uint64_t>(random.below(1 << 20));
  const auto loss = loss_of(shape, seed, random);
  Program program;
  program.name = loss.text();
  program.operands = {uniform(shape, seed + 2)};
  program.layouts = {
      draw_layout(static_cast<int64_t>(shape.size()), true, mesh, random)};
  if (random.chance(60)) { // the use of loss_parallel
    program.layouts[0][0] = Shard(loss.class_dim);
  }
  program.run = [loss](const Tensors& operands, const DeviceMesh* on) {
    return Results{{loss.of(operands[0], on)}, {}};
  };
  return program;
}

// Returns a network with a head that leaves its logits sharded along the
// classes.
Styled classifier(const Sizes& s, Random& random) {
  const auto input = draw_output(s.ndim, random);
  const auto between = draw_output(s.ndim, random);
  return {
      "Colwise, tanh, Rowwise, Colwise; ",
      [s] {
        return torch::nn::Sequential(
            linear(s.in, s.hidden, s.bias),
            torch::nn::Tanh(),
            linear(s.hidden, s.in, s.bias),
            linear(s.in, s.out, s.bias));
      },
      {{"0", ColwiseParallel({.input_layouts = input})},
       {"2", RowwiseParallel({.output_layouts = between})},
       {"3",
        ColwiseParallel(
            {.input_layouts = between, .use_local_output = false})}},
      input,
      Shard(1),
      /*local_output=*/false};
}

Program of_a_network(const std::vector<int64_t>& mesh, Random& random) {
  const auto seed = static_cast<uint64_t>(random.below(1 << 20));
  const Sizes s = {
      2,
      2 + random.below(5),
      2 + random.below(5),
      2 + random.below(5),
      random.chance(60)};
  const auto batch = 1 + random.below(6);
  const auto loss = loss_of({batch, s.out}, seed, random);
  auto program = program_of(
      classifier(s, random),
      uniform({batch, s.in}, seed + 50),
      {batch, s.out},
      draw_given(mesh, random),
      seed);
  program.name += loss.text();
  program.layouts = {draw_layout(2, true, mesh, random)};
  program.run = [loss, network = program.run](
                    const Tensors& operands, const DeviceMesh* on) {
    auto results = network(operands, on);
    results.values = {loss.of(results.values[0], on)};
    return results;
  };
  return program;
}

} // namespace

Program draw_loss(const std::vector<int64_t>& mesh, Random& random) {
  return random.chance(70) ? of_logits(mesh, random)
                           : of_a_network(mesh, random);
}

} // namespace dtensor::second_derivatives

// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randint.h>
#include <c10/util/StringUtil.h>
#include <dtensor/parallel/loss_parallel.h>

#include <memory>

#include "program.h"

namespace dtensor::second_derivatives {

Program draw_loss(const std::vector<int64_t>& mesh, Random& random) {
  std::vector<int64_t> shape = {1 + random.below(6), 2 + random.below(6)};
  if (random.chance(30)) {
    shape.push_back(1 + random.below(3));
  }
  if (random.chance(10)) {
    shape = {shape[1]};
  }
  const auto class_dim = shape.size() == 1 ? 0 : 1;
  const auto classes = shape[static_cast<size_t>(class_dim)];
  const auto seed = static_cast<uint64_t>(random.below(1 << 20));
  auto target_sizes = shape;
  target_sizes.erase(target_sizes.begin() + class_dim);
  auto generator = at::detail::createCPUGenerator(seed);
  const auto target =
      at::randint(0, classes, target_sizes, generator, at::kLong);
  const bool weighted = random.chance(30);
  const auto weight = uniform({classes}, seed + 1).abs() + 0.1;
  const auto reduction = random.below(3);
  const auto ignored = random.chance(30) ? int64_t{0} : int64_t{-100};
  const double smoothing = random.chance(40) ? 0.3 : 0;
  const bool parallel = random.chance(70);

  Program program;
  program.name = c10::str(
      parallel ? "loss_parallel " : "",
      "cross_entropy, reduction ",
      reduction,
      weighted ? ", weight" : "",
      ignored == 0 ? ", ignore 0" : "",
      smoothing > 0 ? ", smoothing" : "");
  program.operands = {uniform(shape, seed + 2)};
  program.layouts = {
      draw_layout(static_cast<int64_t>(shape.size()), true, mesh, random)};
  if (random.chance(60)) { // what loss_parallel is for
    program.layouts[0][0] = Shard(class_dim);
  }
  program.run = [=](const Tensors& operands, const DeviceMesh* on) {
    const auto as_operand = [&](const at::Tensor& t) {
      return on == nullptr ? t : replicated(t, *on);
    };
    const auto guard =
        on != nullptr && parallel ? std::make_unique<LossParallel>() : nullptr;
    const auto loss = at::cross_entropy_loss(
        operands[0],
        as_operand(target),
        weighted ? std::optional(as_operand(weight)) : std::nullopt,
        reduction,
        ignored,
        smoothing);
    return Results{{loss}, {}};
  };
  return program;
}

} // namespace dtensor::second_derivatives

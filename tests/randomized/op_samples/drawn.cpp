// SPDX-License-Identifier: BSD-3-Clause
#include "drawn.h"

#include "attempt.h"

#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/comm/ranks.h>

#include <optional>

#include "tests/randomized/harness/arguments.h"
#include "tests/randomized/harness/operators.h"

namespace dtensor::randomized {
namespace {

constexpr int kMostDraws = 10;

struct Drawn {
  Trial trial;
  std::vector<int64_t> mesh;
  Combination layouts;
};

// Draws a shard placement, possibly with a unit, or strided as for a fused
// weight.
Placement draw_shard(const Operand& operand, Random& random) {
  const auto dim = random.below(static_cast<int64_t>(operand.sizes.size()));
  const auto kind = random.below(100);
  if (kind < 60) {
    return Shard(dim);
  }
  std::vector<int64_t> units = {2, 3};
  for (const int64_t unit : {64, 192}) {
    if (unit < operand.sizes[static_cast<size_t>(dim)]) {
      units.insert(units.end(), 4, unit); // sizes of heads
    }
  }
  const auto unit = random.one_of(units);
  return kind < 87 ? Shard(dim, unit)
      : kind < 96  ? StridedShard(dim, 2)
                   : StridedShard(dim, 2, unit);
}

Placement draw_placement(
    const Operand& operand,
    std::optional<ReduceOp>& reduce,
    Random& random) {
  const auto kind = random.below(100);
  if (kind < 65 && !operand.sizes.empty()) {
    return draw_shard(operand, random);
  }
  if (kind < 80 && operand.dtype != at::kBool) {
    static const std::vector<ReduceOp> floating = {
        ReduceOp::kSum,
        ReduceOp::kSum,
        ReduceOp::kAvg,
        ReduceOp::kMax,
        ReduceOp::kMin};
    if (!reduce) {
      reduce =
          operand.dtype == at::kLong ? ReduceOp::kSum : random.one_of(floating);
    }
    return Partial(*reduce);
  }
  return Replicate();
}

Drawn draw_once(const std::string& name, bool heads_only, Random& random) {
  static const std::vector<std::vector<int64_t>> meshes = {
      {1}, {2}, {2}, {3}, {4}, {5}, {2, 2}, {2, 2}, {2, 3}, {3, 2}};
  const auto op = find_operator(name);
  const bool has_heads = heads_only || random.chance(25);
  const auto& mesh = random.one_of(meshes);
  Combination layouts;
  Tensors operands;
  for (const auto& operand : draw_operands(op.schema(), random, has_heads)) {
    std::optional<ReduceOp> reduce;
    auto& layout = layouts.emplace_back();
    for (size_t m = 0; m < mesh.size(); ++m) {
      layout.push_back(draw_placement(operand, reduce, random));
    }
    operands.push_back(
        full_operand(operand, static_cast<uint64_t>(random.below(100000))));
    operands.back().set_requires_grad(operands.back().is_floating_point());
  }
  const auto variant = static_cast<uint64_t>(random.below(100000));
  auto trial = trial_alone(
      {op,
       draw_arguments(op.schema(), operands, variant),
       /*is_out_form=*/false,
       /*number=*/0,
       /*has_loss=*/true});
  // An operator that is not differentiable is tried without gradients.
  trial.truth.differentiable &= trial.truth.grad.error.empty();
  trial.skip |= !trial.truth.no_grad.error.empty();
  trial.truth.skips_infinite = true;
  return {std::move(trial), mesh, std::move(layouts)};
}

Verdict try_drawn(const Drawn& drawn) {
  const auto ranks = c10::multiply_integers(drawn.mesh);
  Meeting meeting(static_cast<size_t>(ranks));
  Verdict verdict;
  run_ranks(ranks, [&](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, drawn.mesh);
    const auto mine = try_combination(
        drawn.trial, mesh, drawn.layouts, /*backwards=*/false, meeting);
    if (rank == 0) {
      verdict = mine;
    }
  });
  return verdict;
}

} // namespace

Case draw_case(
    const std::vector<std::string>& operators,
    bool heads_only,
    uint64_t seed) {
  const auto& name = operators.at(seed % operators.size());
  Random random(seed);
  for (int draws = 0; draws < kMostDraws; ++draws) {
    const auto drawn =
        std::make_shared<Drawn>(draw_once(name, heads_only, random));
    if (!drawn->trial.skip) {
      return {
          name + " | " + where_of(drawn->trial, drawn->mesh, drawn->layouts),
          [drawn] { return try_drawn(*drawn); }};
    }
  }
  return {name, [] {
            return Verdict::skipped("no draw that the plain operator accepts");
          }};
}

} // namespace dtensor::randomized

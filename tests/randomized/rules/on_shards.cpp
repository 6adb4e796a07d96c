// SPDX-License-Identifier: BSD-3-Clause
#include "on_shards.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace dtensor::randomized {
namespace {

// Returns the term of a rank in a sum of two. Each element of each operand has
// a different factor, so that an operator that is not linear gives another
// result.
at::Tensor term_of(const at::Tensor& full, size_t operand, int64_t rank) {
  auto generator = at::detail::createCPUGenerator(17 + operand);
  const auto factor =
      at::rand(full.sizes(), generator, at::kDouble).mul_(4).sub_(1.5);
  return (full * (rank == 0 ? factor : 1 - factor)).to(full.scalar_type());
}

at::Tensor shard_of(const at::Tensor& full, int64_t d, int64_t r, int64_t n) {
  const auto size = full.size(d);
  const auto chunk = (size + n - 1) / n;
  const auto begin = std::min(r * chunk, size);
  return full.narrow(d, begin, std::min(chunk, size - begin));
}

at::Tensor local_of(
    const at::Tensor& full,
    size_t operand,
    const Placements& layout,
    int64_t rank,
    int64_t ranks) {
  if (layout.empty() || layout[0].is_replicate()) {
    return full;
  }
  return layout[0].is_partial()
      ? term_of(full, operand, rank)
      : shard_of(full, layout[0].dim(), rank, ranks).contiguous();
}

bool is_equal(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
      at::allclose(a, b, 1e-4, 1e-6, /*equal_nan=*/true);
}

bool is_sharded(const Tensors& locals, const at::Tensor& full, int64_t d) {
  const auto ranks = static_cast<int64_t>(locals.size());
  for (int64_t r = 0; r < ranks; ++r) {
    if (!is_equal(
            locals[static_cast<size_t>(r)], shard_of(full, d, r, ranks))) {
      return false;
    }
  }
  return true;
}

bool is_partial(const Tensors& locals, const at::Tensor& full) {
  if (!full.is_floating_point() && !full.is_complex()) {
    return false;
  }
  at::Tensor sum;
  for (const auto& local : locals) {
    if (local.sizes() != full.sizes()) {
      return false;
    }
    sum = sum.defined() ? sum + local : local;
  }
  return is_equal(sum, full);
}

std::optional<Placement> placement_of(
    const Tensors& locals,
    const at::Tensor& full) {
  const bool is_replicated =
      std::all_of(locals.begin(), locals.end(), [&](const auto& local) {
        return is_equal(local, full);
      });
  if (is_replicated) {
    return Replicate();
  }
  for (int64_t d = 0; d < full.dim(); ++d) {
    if (is_sharded(locals, full, d)) {
      return Shard(d);
    }
  }
  return is_partial(locals, full)
      ? std::optional<Placement>(Partial(ReduceOp::kSum))
      : std::nullopt;
}

Results call_on_rank(
    const Call& call,
    const Truth& truth,
    const Combination& combination,
    int64_t rank,
    int64_t ranks) {
  Tensors locals;
  for (size_t i = 0; i < combination.size(); ++i) {
    locals.push_back(
        local_of(truth.operands[i], i, combination[i], rank, ranks));
  }
  return compute(call, locals, truth.mutated, truth.leaves, Mode::kNoGrad);
}

bool same_others(const Results& a, const Results& b) {
  return std::equal(
      a.others.begin(),
      a.others.end(),
      b.others.begin(),
      b.others.end(),
      [](const auto& x, const auto& y) { return x == y; });
}

} // namespace

std::optional<Placements> placements_on_shards(
    const Call& call,
    const Truth& truth,
    const Combination& combination,
    int64_t ranks) {
  std::vector<Results> of_ranks;
  for (int64_t r = 0; r < ranks; ++r) {
    of_ranks.push_back(call_on_rank(call, truth, combination, r, ranks));
    const auto& mine = of_ranks.back();
    if (!mine.error.empty() || !same_others(mine, truth.no_grad) ||
        mine.values.size() != truth.no_grad.values.size()) {
      return std::nullopt;
    }
  }
  Placements placements;
  for (size_t i = 0; i < truth.no_grad.values.size(); ++i) {
    const auto& full = truth.no_grad.values[i];
    Tensors locals;
    for (const auto& mine : of_ranks) {
      locals.push_back(mine.values[i]);
      if (locals.back().defined() != full.defined()) {
        return std::nullopt;
      }
    }
    const auto placement = full.defined()
        ? placement_of(locals, full)
        : std::optional<Placement>(Replicate());
    if (!placement) {
      return std::nullopt;
    }
    placements.push_back(*placement);
  }
  return placements;
}

std::vector<bool> influences_of(const Call& call, const Truth& truth) {
  const auto& expected = truth.no_grad.values;
  std::vector<bool> influences;
  for (size_t i = 0; i < truth.operands.size(); ++i) {
    auto operands = truth.operands;
    const auto& t = operands[i];
    if (!t.is_floating_point() && !t.is_complex()) {
      influences.push_back(true); // other indices may be out of range
      continue;
    }
    operands[i] = term_of(t, i, 0);
    const auto results =
        compute(call, operands, truth.mutated, truth.leaves, Mode::kNoGrad);
    influences.push_back(
        !results.error.empty() ||
        !std::equal(
            results.values.begin(),
            results.values.end(),
            expected.begin(),
            expected.end(),
            [](const auto& a, const auto& b) {
              return a.defined() == b.defined() &&
                  (!a.defined() || is_equal(a, b));
            }));
  }
  return influences;
}

} // namespace dtensor::randomized

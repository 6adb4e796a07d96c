// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/rand.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <dtensor/tensor/dtensor.h>

#include "program.h"

namespace dtensor::second_derivatives {
namespace {

Placement draw_placement(int64_t ndim, bool may_be_partial, Random& random) {
  const auto kind = random.below(100);
  if (kind < 45 && ndim > 0) {
    return Shard(random.below(ndim));
  }
  if (kind < 52 && ndim > 0) {
    return StridedShard(random.below(ndim), 2);
  }
  if (kind < 58 && ndim > 0) {
    return Shard(random.below(ndim), 2);
  }
  if (kind < 80 && may_be_partial) {
    return Partial(random.chance(75) ? ReduceOp::kSum : ReduceOp::kAvg);
  }
  return Replicate();
}

// Returns this rank's term. Terms differ across ranks and reduce to `full`.
at::Tensor
term_of(const at::Tensor& full, const DeviceMesh& mesh, PlacementsRef layout) {
  auto term = full;
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    const auto& p = layout[static_cast<size_t>(m)];
    if (!p.is_partial() || mesh.size(m) == 1) {
      continue;
    }
    const auto n = mesh.size(m);
    const bool first = mesh.get_local_rank(m) == 0;
    term = p.is_partial(ReduceOp::kAvg) ? term * (first ? n * n : -n)
                                        : term * (first ? n : -1);
  }
  return term;
}

} // namespace

Placements draw_layout(
    int64_t ndim,
    bool may_be_partial,
    const std::vector<int64_t>& mesh,
    Random& random) {
  Placements layout(mesh.size(), Replicate());
  const bool one = random.chance(50);
  const auto only = random.below(static_cast<int64_t>(mesh.size()));
  for (size_t m = 0; m < mesh.size(); ++m) {
    if (!one || m == static_cast<size_t>(only)) {
      layout[m] = draw_placement(ndim, may_be_partial, random);
    }
  }
  return layout;
}

at::Tensor
place(const at::Tensor& full, const DeviceMesh& mesh, PlacementsRef layout) {
  Placements cuts(layout.begin(), layout.end());
  for (auto& p : cuts) {
    p = p.is_partial() ? Replicate() : p;
  }
  const auto part = to_local(
      distribute_tensor(term_of(full, mesh, layout), mesh, cuts, std::nullopt));
  return DTensor::from_local(part, mesh, layout, {.shape = full.sizes().vec()});
}

at::Tensor replicated(const at::Tensor& full, const DeviceMesh& mesh) {
  return DTensor::from_local(
      full, mesh, Placements(static_cast<size_t>(mesh.ndim()), Replicate()));
}

at::Tensor uniform(at::IntArrayRef sizes, uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  return at::rand(sizes, generator, at::kDouble) * 2 - 1;
}

} // namespace dtensor::second_derivatives

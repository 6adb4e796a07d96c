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

at::Tensor replicated(const at::Tensor& full, const DeviceMesh& mesh) {
  return DTensor::from_local(
      full, mesh, Placements(static_cast<size_t>(mesh.ndim()), Replicate()));
}

at::Tensor uniform(at::IntArrayRef sizes, uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  return at::rand(sizes, generator, at::kDouble) * 2 - 1;
}

} // namespace dtensor::second_derivatives

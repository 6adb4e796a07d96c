// SPDX-License-Identifier: BSD-3-Clause
#include "place.h"

#include <ATen/ATen.h>
#include <dtensor/tensor/dtensor.h>

namespace dtensor::randomized {
namespace {

// Returns factors whose sum is 1, in rank order, without rounding: 2 and -2 in
// turn, and the remainder on the last rank.
at::Scalar factor(int64_t rank, int64_t ranks) {
  return rank < ranks - 1 ? (rank % 2 == 0 ? 2 : -2)
                          : (ranks % 2 == 0 ? -1 : 1);
}

// Returns this rank's term of a sum. For a number near the largest one, rank 0
// has the full value.
at::Tensor sum_term(const at::Tensor& total, int64_t rank, int64_t ranks) {
  auto term = total * factor(rank, ranks);
  if (!total.is_floating_point() && !total.is_complex()) {
    return term; // wraps around and back
  }
  const auto alone = rank == 0 ? total : at::zeros_like(total);
  return at::where(can_grow(total), term, alone);
}

at::Tensor
term_of(const at::Tensor& full, const DeviceMesh& mesh, PlacementsRef layout) {
  auto term = full;
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    const auto& p = layout[static_cast<size_t>(m)];
    if (!p.is_partial()) {
      continue;
    }
    const auto rank = mesh.get_local_rank(m);
    switch (p.reduce_op()) {
      case ReduceOp::kMax:
        term = rank == 0 ? term : term - 1;
        break;
      case ReduceOp::kMin:
        term = rank == 0 ? term : term + 1;
        break;
      case ReduceOp::kAvg:
        term = term * factor(rank, mesh.size(m)) * mesh.size(m);
        break;
      default:
        term = sum_term(term, rank, mesh.size(m));
    }
  }
  return term;
}

} // namespace

at::Tensor can_grow(const at::Tensor& t) {
  return at::isfinite(t * 0x1p32);
}

at::Tensor
place(const at::Tensor& full, const DeviceMesh& mesh, PlacementsRef layout) {
  Placements cuts(layout.begin(), layout.end());
  for (auto& p : cuts) {
    p = p.is_partial() ? Placement(Replicate()) : p;
  }
  const auto cut =
      distribute_tensor(term_of(full, mesh, layout), mesh, cuts, std::nullopt);
  if (PlacementsRef(cuts) == layout) {
    return cut;
  }
  FromLocalOptions options;
  options.shape = full.sizes().vec();
  options.stride = cut.strides().vec();
  return DTensor::from_local(to_local(cut), mesh, layout, options);
}

} // namespace dtensor::randomized

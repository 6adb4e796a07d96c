// SPDX-License-Identifier: BSD-3-Clause
// The rows that select() or slice() takes of a dimension, and those among them
// that this rank holds.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/layout/stepped_range_impl.h>
#include <dtensor/ops/kernels/kernel_args_impl.h>

namespace dtensor::detail {

/// The rows of dimension `dim` that a call takes. select() takes one and drops
/// the dimension.
struct TakenRows {
  int64_t dim = 0;
  SteppedRange range;
  bool drops_dim = false;
};

/// Returns the rows that a view, or its gradient, takes of a tensor of `sizes`.
TakenRows taken_rows(const KernelArgs& args, SizesRef sizes);

/// Returns the mesh dimension that shards `dim` of both a tensor and its slice;
/// -1 if there is none.
int64_t exchanging_dim(const Spec& whole, const Spec& part, int64_t dim);

/// Returns zeros of the local shape of `layout`, in its memory order.
at::Tensor zeros_of(const Spec& layout, const at::TensorOptions& options);

/// Calls f(positions, rows) for each stretch of taken rows in this rank's shard
/// of a tensor of layout `whole`: their positions among the taken rows, and a
/// view of the rows.
template <class F>
void for_held_rows(
    const at::Tensor& shard,
    const Spec& whole,
    const TakenRows& taken,
    const F& f) {
  int64_t before = 0; // rows of earlier intervals
  for (const auto& held : local_intervals(whole, taken.dim)) {
    const auto positions = taken.range.positions_in(held);
    if (positions.size() > 0) {
      const auto step = taken.range.step;
      const auto first =
          before + taken.range.row_at(positions.begin) - held.begin;
      const auto end = first + (positions.size() - 1) * step + 1;
      f(positions, shard.slice(taken.dim, first, end, step));
    }
    before += held.size();
  }
}

} // namespace dtensor::detail

// SPDX-License-Identifier: BSD-3-Clause
// Convolutions of large shards of rows, without a copy of the shard.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/ops/kernels/kernel_args_impl.h>
#include <dtensor/ops/kernels/row_exchange_impl.h>

#include <cstdint>
#include <optional>

namespace dtensor::detail {

/// The rows of a rank's result whose windows cover rows of other ranks: `first`
/// rows at the beginning of the result, and `last` rows at its end.
struct EdgeRows {
  int64_t first = 0;
  int64_t last = 0;
};

/// Returns this rank's edge rows. Returns nullopt on all ranks if a rank cannot
/// compute its remaining rows from its own input, or if shards are so small
/// that copying them is cheaper than another call.
///
/// A rank can compute its remaining rows if its window i begins `stride * i -
/// padding` rows behind its first row, and if the operator on its rows gives as
/// many rows as its result has.
std::optional<EdgeRows> edge_rows(const Halo& halo);

/// Returns the convolution of the arguments: a collective call. Runs the
/// operator on this rank's rows of the input, as if they were padded at both
/// ends. Then computes the edge rows again, with the rows that other ranks
/// send. Records no gradient of the received rows.
at::Tensor convolve_with_halos(
    const KernelArgs& args,
    const Halo& halo,
    const EdgeRows& edges);

} // namespace dtensor::detail

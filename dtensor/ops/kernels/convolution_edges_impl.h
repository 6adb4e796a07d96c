// SPDX-License-Identifier: BSD-3-Clause
// Convolutions of large shards of rows, without a copy of the shard.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/ops/kernels/kernel_args_impl.h>
#include <dtensor/ops/kernels/row_exchange_impl.h>

#include <optional>

namespace dtensor::detail {

/// The rows of a rank's result whose windows cover rows of other ranks: `first`
/// rows at the beginning of the result, and `last` rows at its end.
struct EdgeRows {
  int64_t first = 0;
  int64_t last = 0;
};

/// Returns this rank's edge rows, if all ranks can compute the other rows of
/// their results from their own rows of the input: window i of a rank begins
/// `stride * i - padding` rows behind the rank's first row, and the plain
/// operator gives as many rows as the rank's result has. Empty as well for a
/// small input, for which a copy of the shard takes less time than another
/// call of the operator. The result is empty on all ranks or on none.
std::optional<EdgeRows> edge_rows(const Halo& halo);

/// Returns the convolution of the arguments: runs the operator on this rank's
/// rows of the input, as if the rows were padded at both ends, and computes the
/// edge rows again, from the rows that other ranks send.
at::Tensor convolve_edges_again(
    const KernelArgs& args,
    const Halo& halo,
    const EdgeRows& edges);

} // namespace dtensor::detail

// SPDX-License-Identifier: BSD-3-Clause
// Strategies of x[i, :, j] and of x[i, :, j] = values, where each index is a
// tensor of integers or a mask; and helpers that all lookups share.
#pragma once

#include <dtensor/ops/strategy.h>

#include <vector>

namespace dtensor::detail {

/// Rule of index.Tensor.
Strategies index_strategies(const OpCall& call, int64_t mesh_dim);

/// Rule of index_put and _index_put_impl.
Strategies index_put_strategies(const OpCall& call, int64_t mesh_dim);
/// Returns the shape of the written tensor. Throws IndexError if the indices do
/// not fit the tensor, and RuntimeError if the values do not fit the elements
/// that the indices select.
std::vector<OutputMeta> index_put_meta(const OpCall& call);

/// Marks calls that the operator itself can run, because no indexed dimension
/// is sharded, or a mask is sharded like x. For other calls, passes the layout
/// of x to the local kernel.
void note_indexed_dims(const OpCall& call, Decision& decision);

/// Returns true if a rank may return zeros in place of the elements of other
/// ranks. This excludes bool, which has no sum.
bool looks_up_shards(const OpCall& call);

/// Adds the strategy for a partial self: elements that are only picked may be
/// picked before they are reduced.
void pick_partial(const OpCall& call, int64_t mesh_dim, Strategies& all);

} // namespace dtensor::detail

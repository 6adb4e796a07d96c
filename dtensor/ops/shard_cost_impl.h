// SPDX-License-Identifier: BSD-3-Clause
// Costs of kernels that combine statistics of shards, compared with the cost of
// moving the shards. The cost of a strategy does not include the communication
// of such a kernel, so rules list the strategy only where the kernel takes less
// time.
#pragma once

#include <dtensor/layout/cost.h>
#include <dtensor/ops/strategy.h>

#include <vector>

namespace dtensor::detail {

/// Returns this mesh dimension's largest shard of dimension `dim`; 0 if the
/// mesh dimension does not shard it.
int64_t largest_shard_of(const OpInput& input, int64_t mesh_dim, int64_t dim);

/// Returns true if ranks have different shards of dimension `dim`.
bool shares_dim(const Spec& spec, int64_t dim);

/// Collectives with which ranks combine statistics of their shards.
struct StatisticsExchange {
  CollectiveKind kind; // all_reduce or all_gather
  int64_t count;       // one after the other
  double row_bytes; // of a rank, for each result along the reduced dimensions
};

/// Returns true if an operand is sharded along one of the reduced dimensions
/// `dims` on `mesh_dim`, and the exchange of statistics takes less modelled
/// time than moving the shards: an all_gather, or an all_to_all to another
/// dimension and back. (Only results of the operand's size move back.)
bool is_faster_on_shards(
    const OpCall& call,
    int64_t mesh_dim,
    const std::vector<int64_t>& dims,
    const StatisticsExchange& exchange);

} // namespace dtensor::detail

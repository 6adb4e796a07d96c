// SPDX-License-Identifier: BSD-3-Clause
// AsyncCollective: the arguments of an asynchronous collective, for backends.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/comm/observer.h>
#include <dtensor/layout/spec.h>

namespace dtensor {

/// A collective that a rank enters now and waits for later.
struct AsyncCollective {
  /// kAllReduce, kAllGather, kReduceScatter or kAllToAll (shard_dim_alltoall,
  /// or all_to_all if `received` is not empty).
  CollectiveKind kind = CollectiveKind::kAllReduce;
  /// This rank's input, and the reduction.
  at::Tensor input;
  ReduceOp op = ReduceOp::kSum;
  int64_t dim = 0;       // gathered dimension; of a reduce_scatter: sharded
  int64_t shard_dim = 0; // sharded dimension of a shard_dim_alltoall
  Sizes sizes = {};      // of the members' shards along dim
  /// Numbers of elements that an all_to_all receives from each member; empty
  /// for other collectives. An all_to_all reads `input` in place, and `sizes`
  /// are the numbers of elements that it sends.
  Sizes received = {};
  /// Size of an all_gather's result along dim.
  int64_t gathered_size = 0;
  /// Destination of the result; undefined: a new tensor.
  at::Tensor out = {};
};

} // namespace dtensor

// SPDX-License-Identifier: BSD-3-Clause
// AsyncCollective: what a backend is told of a collective that a rank does not
// wait for yet.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/comm/observer.h>
#include <dtensor/layout/spec.h>

namespace dtensor {

/// A collective that a rank enters, to wait for it later.
struct AsyncCollective {
  /// kAllReduce, kAllGather, kReduceScatter or kAllToAll (shard_dim_alltoall).
  CollectiveKind kind = CollectiveKind::kAllReduce;
  /// What this rank gives, and how terms are combined.
  at::Tensor input;
  ReduceOp op = ReduceOp::kSum;
  int64_t dim = 0;       // that is gathered or, in a reduce_scatter, cut
  int64_t shard_dim = 0; // that is cut in a shard_dim_alltoall
  Sizes sizes = {};      // of the members' parts along dim
  /// Of an all_to_all of one buffer, which is read in place: `sizes` elements
  /// of it go to the members, and so many come from them. Empty in all others.
  Sizes received = {};
  /// Of an all_gather: the result's size along dim.
  int64_t gathered_size = 0;
  /// Where the result goes; undefined: to a tensor of its own.
  at::Tensor out = {};
};

} // namespace dtensor

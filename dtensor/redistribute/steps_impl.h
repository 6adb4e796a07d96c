// SPDX-License-Identifier: BSD-3-Clause
// Executes the steps of a plan on this rank's local tensor.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/comm/pending.h>
#include <dtensor/layout/placement.h>
#include <dtensor/layout/shard_math.h>
#include <dtensor/redistribute/plan.h>

#include <cstdint>
#include <vector>

namespace dtensor::detail {

using Positions = std::vector<int64_t>;

/// Selects `positions` along dimension `dim` of `t`, in that order. Returns a
/// view if the positions are one interval.
at::Tensor
select_positions(const at::Tensor& t, int64_t dim, const Positions& positions);
at::Tensor
select_positions(const at::Tensor& t, int64_t dim, const Intervals& intervals);

/// Returns the permutation that sorts `values`: values[order[0]] is the
/// smallest.
Positions sorted_order(const Positions& values);

/// The distribution of the positions [0, size) of one dimension over a group.
/// The dimension is that of the local tensor when the group's mesh dimension is
/// R.
class DimSharding {
 public:
  DimSharding(const Placement& sharding, int64_t size, int64_t ranks)
      : sharding_(sharding),
        size_(size),
        ranks_(ranks) {}

  int64_t dim() const {
    return sharding_.dim();
  }
  int64_t size() const {
    return size_;
  }
  int64_t ranks() const {
    return ranks_;
  }
  /// True if the shards of ranks 0, 1, ... are consecutive intervals.
  bool in_order() const {
    return sharding_.is_shard();
  }
  /// True if the shards are those of torch.chunk.
  bool is_chunk() const {
    return sharding_.is_chunk();
  }
  /// True if the shards are consecutive but not those of torch.chunk.
  bool in_units() const {
    return in_order() && !is_chunk();
  }

  Intervals shard(int64_t rank) const;
  Positions positions(int64_t rank) const;
  /// Returns the positions of all ranks' shards, concatenated in rank order.
  Positions all_positions() const;
  /// Returns the number of positions of each rank.
  Sizes sizes() const;
  /// Returns the rank that holds each position.
  Positions owners() const;

  /// Reorders `parts`, all shards concatenated in rank order, to the full
  /// dimension.
  at::Tensor put_back(const at::Tensor& parts) const;

 private:
  Placement sharding_;
  int64_t size_;
  int64_t ranks_;
};

/// Returns the local tensor after `step` of a plan from layout `from`. The
/// result may be a view of `local`.
at::Tensor
execute_step(const Spec& from, const Step& step, const at::Tensor& local);

/// Starts the step's collective asynchronously. Returns null, and leaves
/// `local` untouched, if the step has no collective that can run
/// asynchronously. finish_step() computes the local tensor from the received
/// data.
PendingPtr enter_step(const Spec& from, const Step& step, at::Tensor&& local);
at::Tensor
finish_step(const Spec& from, const Step& step, const at::Tensor& received);

} // namespace dtensor::detail

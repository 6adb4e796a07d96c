// SPDX-License-Identifier: BSD-3-Clause
// The steps of a plan, prepared for this rank's local tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/comm/group.h>
#include <dtensor/comm/pending.h>
#include <dtensor/layout/placement.h>
#include <dtensor/layout/shard_math.h>
#include <dtensor/redistribute/plan.h>

#include <cstdint>
#include <memory>
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

  /// Reorders `parts`, the concatenation of all shards in rank order, to the
  /// full dimension.
  at::Tensor put_back(const at::Tensor& parts) const;

 private:
  Placement sharding_;
  int64_t size_;
  int64_t ranks_;
};

/// Returns the element with which a shard is padded to a term of a reduction.
double neutral_element(ReduceOp op);

/// A step of a plan, prepared for this rank. The group, the sizes of shards,
/// and the slices of joint steps are computed when the step is prepared,
/// because a plan is executed many times. The mesh of the plan's layouts owns
/// the group, so a step may run only while these layouts exist.
class LocalStep {
 public:
  LocalStep() = default;
  LocalStep(const LocalStep&) = delete;
  LocalStep& operator=(const LocalStep&) = delete;
  virtual ~LocalStep() = default;

  /// Returns the local tensor after the step, which may be a view of `local`.
  virtual at::Tensor execute(const at::Tensor& local) const = 0;
  /// Starts the step's collective asynchronously. Returns null, and leaves
  /// `local` untouched, if the step has no collective that can run
  /// asynchronously.
  virtual PendingPtr enter(at::Tensor&& local) const = 0;
  /// Returns the local tensor after the step, computed from the received data.
  virtual at::Tensor finish(const at::Tensor& received) const = 0;
};

using LocalStepPtr = std::unique_ptr<const LocalStep>;

/// Prepares `step` of a plan from layout `from`. The rank must be in the mesh.
LocalStepPtr prepare_step(const Spec& from, const Step& step);

/// Prepares a step over several mesh dimensions, or over one that is not the
/// last to shard a tensor dimension. Each rank's local tensor is a box: the
/// product of the indices that the rank holds of each tensor dimension. The
/// step sends the intersections of the boxes before and after the step, so no
/// rules about shardings are needed.
LocalStepPtr prepare_joint_step(const Spec& from, const Step& step);

} // namespace dtensor::detail

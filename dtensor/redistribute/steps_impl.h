// SPDX-License-Identifier: BSD-3-Clause
// Executes the steps of a plan on this rank's local tensor.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/comm/group.h>
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

/// A step over several mesh dimensions, or over one that is not the last to
/// shard a tensor dimension, on this rank. Each rank's local tensor is a box:
/// the product of the indices that the rank holds of each tensor dimension. The
/// step sends the intersections of the boxes before and after the step, so no
/// rules about shardings are needed.
class JointStep {
 public:
  JointStep(const Spec& spec, const Step& step);

  /// Returns the local tensor after the step.
  at::Tensor execute(const at::Tensor& local) const;

  /// Split execute() in two: start the collective, and compute the local tensor
  /// from the received data.
  PendingPtr enter(at::Tensor&& local) const;
  at::Tensor finish(const at::Tensor& received) const;

 private:
  /// Indices of each tensor dimension.
  using Box = c10::SmallVector<Intervals, 5>;
  /// Input of an all_gather or reduce_scatter along `dim`, and the members'
  /// sizes.
  struct Payload {
    at::Tensor sent;
    int64_t dim;
    Sizes sizes;
  };

  /// Return the indices of one or all tensor dimensions that a member holds in
  /// a layout.
  Intervals indices(PlacementsRef placements, int64_t member, int64_t dim)
      const;
  Box box_of(PlacementsRef placements, int64_t member) const;
  ReduceOp reduce_op() const;
  at::Tensor scaled(const at::Tensor& reduced) const;
  Payload payload_of(const at::Tensor& local) const;
  /// Returns the tensor dimension along which the members' shards lie one after
  /// the other, in the order of the members; -1 if there is none.
  int64_t dim_in_order(PlacementsRef sharded) const;
  Sizes sizes_along(int64_t dim, PlacementsRef sharded) const;
  Sizes numels(PlacementsRef placements) const;
  /// Returns the slices that this rank sends to each member.
  std::vector<at::Tensor> parts_to_send(const at::Tensor& local) const;
  /// Returns the shapes of the slices that this rank receives from each member.
  std::vector<Sizes> shapes_to_receive() const;
  at::Tensor without_communication(const at::Tensor& local) const;
  at::Tensor assemble(const std::vector<at::Tensor>& parts) const;
  at::Tensor assemble(const at::Tensor& flat) const;

  const Spec& spec_;
  const Step& step_;
  Group& group_;
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

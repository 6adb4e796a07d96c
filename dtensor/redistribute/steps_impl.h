// SPDX-License-Identifier: BSD-3-Clause
// The steps of a plan, prepared for this rank's local tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/comm/pending.h>
#include <dtensor/redistribute/local_slice_impl.h>
#include <dtensor/redistribute/plan.h>

#include <optional>
#include <vector>

namespace dtensor {

class Group;

namespace detail {

/// A step of a plan, prepared for this rank. The group, the sizes of shards,
/// and slices are computed when the step is prepared, because a plan is
/// executed many times. The mesh of the plan's layouts owns the group, so a
/// step may run only while these layouts exist.
///
/// Each rank's local tensor is a box: the product of the indices that the rank
/// holds of each tensor dimension. The step sends the intersections of the
/// boxes before and after the step, so no rules about shardings are needed.
class LocalStep {
 public:
  /// Prepares `step` of a plan from layout `from`. The rank must be in the
  /// mesh.
  LocalStep(const Spec& from, const Step& step);

  /// Returns the local tensor after the step, which may be a view of `local`.
  at::Tensor execute(const at::Tensor& local) const;
  /// Starts the collective of a step that has one, asynchronously.
  PendingPtr enter(at::Tensor&& local) const;
  /// Returns the local tensor after the step, computed from the received data.
  at::Tensor finish(at::Tensor received) const;

 private:
  struct Members;

  void prepare(const Members& members);
  // Sets the arguments of all_gather or reduce_scatter. `gathered` are the
  // placements in which a rank holds `box`, the indices of all members. Returns
  // the members' slices of it if the step sends flat buffers.
  std::vector<LocalSlice> prepare_members(
      const Members& members,
      PlacementsRef sharded,
      PlacementsRef gathered,
      const IndexBox& box);
  void prepare_all_to_all(
      const Members& members,
      const IndexBox& held,
      const IndexBox& wanted);
  at::Tensor payload(at::Tensor local) const;
  std::vector<at::Tensor> parts_to_send(const at::Tensor& local) const;
  at::Tensor assemble(const std::vector<at::Tensor>& parts) const;
  at::Tensor partition(const at::Tensor& local) const;
  at::Tensor pad(const at::Tensor& local) const;

  StepKind kind_;
  Group* group_ = nullptr; // null if the step sends nothing
  bool is_first_ = false;  // this rank is the first member
  Sizes result_sizes_;
  // Slices of the local tensor that each member receives.
  std::vector<LocalSlice> sent_;
  // Slices of the result that the members' data fill.
  std::vector<LocalSlice> received_;
  std::vector<Sizes> received_shapes_;
  // Reduction of the step; for partition and pad, of the result.
  ReduceOp reduce_op_ = ReduceOp::kSum;
  int64_t averaged_ = 1;
  // Arguments of all_gather, reduce_scatter and shard_dim_alltoall. The
  // dimension is empty if the members' shards are not consecutive; the step
  // then sends flat buffers. Sizes are empty if the group does not need them.
  std::optional<int64_t> dim_;
  Sizes member_sizes_;
  // The dimension that shard_dim_alltoall shards; empty for other collectives.
  std::optional<int64_t> shard_dim_;
};

} // namespace detail
} // namespace dtensor

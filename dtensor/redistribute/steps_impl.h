// SPDX-License-Identifier: BSD-3-Clause
// The steps of a plan, prepared for this rank's local tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/comm/pending.h>
#include <dtensor/redistribute/plan.h>

#include <memory>

namespace dtensor::detail {

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
  /// Starts the collective of a step that has one, asynchronously.
  virtual PendingPtr enter(at::Tensor&& local) const = 0;
  /// Returns the local tensor after the step, computed from the received data.
  virtual at::Tensor finish(const at::Tensor& received) const = 0;
};

using LocalStepPtr = std::unique_ptr<const LocalStep>;

/// Prepares `step` of a plan from layout `from`. The rank must be in the mesh.
LocalStepPtr prepare_step(const Spec& from, const Step& step);

/// Prepares any step but a partition. Each rank's local tensor is a box: the
/// product of the indices that the rank holds of each tensor dimension. The
/// step sends the intersections of the boxes before and after the step, so no
/// rules about shardings are needed.
LocalStepPtr prepare_joint_step(const Spec& from, const Step& step);

} // namespace dtensor::detail

// SPDX-License-Identifier: BSD-3-Clause
// Executes the steps of a plan on this rank's local tensor.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/comm/pending.h>
#include <dtensor/redistribute/plan.h>

namespace dtensor::detail {

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

// SPDX-License-Identifier: BSD-3-Clause
// The steps of a plan, carried out on this rank's part.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/comm/pending.h>
#include <dtensor/redistribute/plan.h>

namespace dtensor::detail {

/// The part after `step`, which belongs to a plan from layout `from`. May be a
/// view of `local`.
at::Tensor
execute_step(const Spec& from, const Step& step, const at::Tensor& local);

/// Enters the step's collective; null, and `local` untouched, if it has none
/// that can be left. finish_step() makes the part of what is received.
PendingPtr enter_step(const Spec& from, const Step& step, at::Tensor&& local);
at::Tensor
finish_step(const Spec& from, const Step& step, const at::Tensor& received);

} // namespace dtensor::detail

// SPDX-License-Identifier: BSD-3-Clause
// Batch normalization whose samples or space are sharded: ranks compute the
// statistics of a channel together.
#pragma once

#include <dtensor/ops/kernels/kernel_args_impl.h>
#include <dtensor/ops/strategy.h>

namespace dtensor::detail {

/// Returns true if ranks hold different elements of one channel of a tensor in
/// this layout, (samples, channels, space...).
bool shares_channels(const Spec& layout);

/// Throws unless the running statistics, which a training step updates in
/// place, are in the layout of the call. `training` is the value of the
/// operator's flag.
void check_running_statistics(
    const KernelArgs& args,
    const Decision& decision,
    bool training);

/// Computes batch_norm in training, of a local input in a layout that shares
/// channels, and updates the running statistics. Autograd may record the call.
at::Tensor shared_batch_norm(const KernelArgs& args, const SpecPtr& layout);

} // namespace dtensor::detail

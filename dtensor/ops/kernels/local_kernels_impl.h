// SPDX-License-Identifier: BSD-3-Clause
// Local kernels that rules name: what a rank computes where the operator itself
// would not do. Rules are pure and know these by their declarations alone.
#pragma once

#include <dtensor/ops/strategy.h>

namespace dtensor::detail {

/// In a LocalKernel's form.
using LocalKernelFunction =
    void(const c10::OperatorHandle&, const Decision&, torch::jit::Stack*);

/// Of attention with dropout by global index, or of no elements.
LocalKernelFunction attention_local;

/// Of an embedding table of which this rank has some rows.
LocalKernelFunction embedding_local;

/// Of losses: a mean is a sum over ranks by the global number of elements.
LocalKernelFunction loss_local;
LocalKernelFunction loss_backward_local;
/// The same by the total weight, which is summed over ranks here.
LocalKernelFunction nll_local;

/// addmv where there is nothing to multiply: LibTorch does not broadcast.
LocalKernelFunction addmv_local;

/// Whose statistics are taken together.
enum class ChannelNorm : uint8_t { kBatch, kInstance };
/// The name of the argument that says whether they are those of the input.
const char* training_flag(ChannelNorm norm);
/// Of an input without elements on this rank too.
LocalKernel channel_norm_local(ChannelNorm norm);

/// Of an operator whose last argument is a number that it writes: into a sum,
/// one of the summed ranks writes it and the others write zero.
LocalKernelFunction write_number_once;

/// Of the greatest (least) element: over no elements what the reduction that
/// follows does not count.
LocalKernelFunction greatest_local;
LocalKernelFunction least_local;

/// Of a dimension that ranks have parts of: they compare what they have found,
/// by one collective for each mesh dimension that cuts it.
LocalKernelFunction argmax_local;
LocalKernelFunction argmin_local;

/// Of no elements, with gradients that depend on what those of others do.
LocalKernelFunction cumprod_local;
LocalKernelFunction running_extreme_local;

/// A split into as many parts as the whole has, all of them empty: LibTorch
/// counts them by the size of one.
LocalKernelFunction empty_split_local;

/// The view of this rank's part in the shape of its part of the result, never a
/// copy.
LocalKernelFunction view_local;
/// The same of operators whose result may be a copy.
LocalKernelFunction reshape_local;

/// Result shapes of a pointwise operator that has no meta kernel in C++: the
/// operands broadcast, with the dtypes that the operator gives for operands of
/// one element.
std::vector<OutputMeta> pointwise_meta(const OpCall& call);

} // namespace dtensor::detail

// SPDX-License-Identifier: BSD-3-Clause
// Local kernels that rules name. Each replaces the operator on local tensors
// where the operator alone would be wrong or would fail. Rules are pure and use
// only these declarations.
#pragma once

#include <dtensor/ops/strategy.h>

#include <functional>

namespace dtensor::detail {

class KernelArgs;

/// Function type of a local kernel that looks up its arguments by name. The
/// kernel pushes its results with KernelArgs::returns() or run_operator().
using LocalKernelFunction = void(KernelArgs&, const Decision&);
/// Returns the kernel in the form of rules, which takes operator and stack.
LocalKernel boxed(std::function<LocalKernelFunction> kernel);

/// Computes attention with dropout by global index, of empty shards, or with
/// key heads that serve query heads of other ranks.
LocalKernelFunction attention_local;
int64_t attention_draws(
    const c10::OperatorHandle& op,
    torch::jit::Stack* stack);

/// Looks up an embedding table that is sharded by rows.
LocalKernelFunction embedding_local;

/// Compute losses: a mean is a sum over ranks, divided by the global number of
/// elements.
LocalKernelFunction loss_local;
LocalKernelFunction loss_backward_local;
/// Computes nll_loss: a mean is divided by the total weight, which is summed
/// over ranks here.
LocalKernelFunction nll_local;

/// Compute losses of samples: margins between classes, and CTC with its
/// gradient. A mean divides by the global number of samples.
LocalKernelFunction margin_loss_local;
LocalKernelFunction margin_loss_backward_local;
LocalKernelFunction ctc_loss_local;

/// Computes addmv with nothing to multiply, where LibTorch does not broadcast.
LocalKernelFunction addmv_local;

/// Compute the operator by LibTorch's decomposition into views and products.
/// These are kernels of the call, not of its local tensors.
void einsum_decomposed(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void tensordot_decomposed(
    const c10::OperatorHandle& op,
    torch::jit::Stack* stack);
/// True if autocast is on for the device of a tensor among the arguments.
bool is_autocast(c10::ArrayRef<c10::IValue> args);

/// Compute a convolution and its gradients, even if an operand is empty.
LocalKernelFunction convolution_local;
LocalKernelFunction convolution_backward_local;

/// Pools windows of the last `space` dimensions, which may be sharded.
LocalKernel pool_local(int64_t space);

/// Upsamples the last `space` dimensions, which may be sharded, by whole
/// numbers. A row of the result needs up to `halo` rows beside its own.
LocalKernel upsample_local(int64_t space, int64_t halo);
/// Pads the last `space` dimensions, which may be sharded, by reflection or
/// replication.
LocalKernel pad_local(int64_t space, bool reflects);

/// Compute roll, flip and constant_pad_nd along sharded dimensions. Each rank
/// has a range of rows of the dimension.
LocalKernelFunction roll_local;
LocalKernelFunction flip_local;
LocalKernelFunction constant_pad_local;

/// Runs the operator, or returns zeros if its first operand is empty. Used for
/// operators that LibTorch refuses to run without samples or channels.
LocalKernelFunction zeros_if_empty;
/// As zeros_if_empty(), for operators whose gradient depends on that operand.
LocalKernelFunction zeros_of_squares_if_empty;

/// Dimensions over which a normalization computes joint statistics.
enum class ChannelNorm : uint8_t { kBatch, kInstance };
/// Returns the name of the argument that is true if the input's statistics are
/// used.
const char* training_flag(ChannelNorm norm);
/// Computes a channel normalization, even if the local input is empty.
LocalKernel channel_norm_local(ChannelNorm norm);
/// Compute the operators below batch_norm, which return statistics, and their
/// gradients. Ranks that share channels compute joint statistics.
LocalKernelFunction batch_norm_local;
LocalKernelFunction batch_norm_backward_local;

/// Computes recurrent layers. Dropout between them is by global index.
LocalKernelFunction recurrent_layers_local;
int64_t recurrent_draws(
    const c10::OperatorHandle& op,
    torch::jit::Stack* stack);

/// Runs an operator that writes the number in its last argument. In a partial
/// sum, one rank writes the number and the others write zero.
LocalKernelFunction write_number_once;

/// Compute the greatest (least) element. The result for no elements is the
/// identity of the following reduction.
LocalKernelFunction greatest_local;
LocalKernelFunction least_local;

/// Computes aminmax. An empty shard gives the identities of min and max.
LocalKernelFunction aminmax_local;
/// Computes variances, standard deviations and their means over sharded
/// dimensions. Ranks gather the number, mean and squared distances of each
/// shard.
LocalKernelFunction variance_local;

/// Compute logsumexp, softmax and its gradients along sharded dimensions. Ranks
/// exchange statistics of each row.
LocalKernelFunction logsumexp_local;
LocalKernelFunction softmax_local;
LocalKernelFunction log_softmax_local;
LocalKernelFunction safe_softmax_local;
LocalKernelFunction softmax_backward_local;
LocalKernelFunction log_softmax_backward_local;

/// Find the greatest (least) element of sharded dimensions: its index, or both.
/// Ranks compare local results, with one collective per mesh dimension that
/// shards these dimensions.
LocalKernelFunction argmax_local;
LocalKernelFunction argmin_local;
LocalKernelFunction greatest_with_index_local;
LocalKernelFunction least_with_index_local;
/// Finds the k greatest or least elements of a sharded dimension. Ranks
/// exchange k candidates each.
LocalKernelFunction topk_local;
/// Sorts a dimension that one mesh dimension shards. The result has the
/// operand's layout.
LocalKernelFunction sort_local;

/// Finds the element at a position of a sorted dimension that one mesh
/// dimension shards: kthvalue, median and nanmedian.
LocalKernelFunction selection_local;
/// Finds the median of all elements of a tensor that one mesh dimension shards
/// (median and nanmedian without a dimension).
LocalKernelFunction median_local;

/// Compute scans. Along a sharded dimension, each rank scans its shard and
/// combines it with the gathered totals of the preceding shards. The gradient
/// of an empty shard depends on the same tensors as on other ranks.
LocalKernelFunction cumsum_local;
LocalKernelFunction cumprod_local;
LocalKernelFunction logcumsumexp_local;
LocalKernelFunction running_extreme_local;
/// Computes quantiles. The quantiles of an empty shard are an empty result.
LocalKernelFunction quantile_local;

/// Runs an operator that returns "info" last and checks it. Gathers the info,
/// so that the check fails on all ranks or on none.
LocalKernelFunction check_errors_local;
/// Computes cholesky, which fails on all ranks or on none.
LocalKernelFunction cholesky_local;
/// Computes determinants. The gradient of an empty shard depends on the same
/// tensors as on other ranks.
LocalKernelFunction determinant_local;
/// Compute products of Householder matrices. The gradient of an empty shard
/// depends on the same tensors as on other ranks.
LocalKernelFunction householder_local;
LocalKernelFunction ormqr_local;
/// Adds the elements of the global diagonal that are in the local matrix.
LocalKernelFunction trace_local;

/// Returns the Fourier transform of an empty shard.
LocalKernelFunction fft_of_empty_local;

/// Splits an empty local dimension into as many empty tensors as the global
/// split has. LibTorch would compute their number from the split size.
LocalKernelFunction empty_split_local;

/// Views the local tensor in the local shape of the result, never as a copy.
LocalKernelFunction view_local;
/// Reshapes the local tensor, possibly as a copy.
LocalKernelFunction reshape_local;

/// Returns the result shapes of a pointwise operator without a meta kernel in
/// C++. The operands broadcast, and the dtypes come from running the operator
/// on operands of one element.
std::vector<OutputMeta> pointwise_meta(const OpCall& call);

} // namespace dtensor::detail

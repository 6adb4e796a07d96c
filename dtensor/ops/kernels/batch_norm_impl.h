// SPDX-License-Identifier: BSD-3-Clause
// Batch normalization of an input that is sharded along samples or spatial
// dimensions. Ranks compute the statistics of a channel together.
#pragma once

#include <dtensor/ops/kernels/kernel_args_impl.h>
#include <dtensor/ops/kernels/over_shards_impl.h>
#include <dtensor/ops/strategy.h>

#include <vector>

namespace dtensor::detail {

/// Returns true if ranks hold different elements of one channel of a tensor in
/// this layout, (samples, channels, space...).
bool shares_channels(const Spec& layout);

/// Returns the sum of a local tensor over the ranks that share channels.
at::Tensor summed_over_ranks(at::Tensor local, const Spec& layout);
/// Returns the number of elements of a channel on all ranks.
double channel_count(const Spec& layout);
/// Returns the dimensions of samples and space: all except the channels.
std::vector<int64_t> all_but_channels(const at::Tensor& input);
/// Returns a vector of one number per channel in the shape of `input`.
inline at::Tensor per_channel(
    const at::Tensor& vector,
    const at::Tensor& input) {
  return along_dim(vector, 1, input.dim());
}

/// Combines the moments of several ranks. `all` is (ranks, 3, ...): the number
/// of elements, the mean, and the sum of squared deviations of each rank. The
/// result is (3, ...): the same numbers of all ranks.
at::Tensor combined_moments(const at::Tensor& all);

/// Local output and joint statistics, in double precision.
struct BatchNormResult {
  at::Tensor output;
  at::Tensor mean;
  at::Tensor inverse_std;
};
/// Returns the dtype of the vectors among the arguments, in which LibTorch
/// computes: that of weight, bias or running mean, else that of the input.
at::ScalarType vector_dtype(const KernelArgs& args, const at::Tensor& input);
/// Computes a training step of a local input in a layout that shares channels,
/// and updates the running statistics among the arguments.
BatchNormResult normalize_batch(
    const KernelArgs& args,
    const at::Tensor& input,
    const at::Tensor& weight,
    const at::Tensor& bias,
    const Spec& layout);

/// Local gradients. The gradients of weight and bias are sums over this rank's
/// elements only.
struct BatchNormGradients {
  at::Tensor input;
  at::Tensor weight;
  at::Tensor bias;
};
/// Computes the gradients of normalize_batch(). `of` has the statistics of the
/// forward pass.
BatchNormGradients batch_norm_gradients(
    const at::Tensor& grad,
    const at::Tensor& input,
    const at::Tensor& weight,
    const BatchNormResult& of,
    const Spec& layout);

/// Throws unless the running statistics, which a training step updates in
/// place, are in the layout of the call. `training` is the value of the
/// operator's flag.
void check_running_statistics(
    const KernelArgs& args,
    const Decision& decision,
    bool training);

} // namespace dtensor::detail

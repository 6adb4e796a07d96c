// SPDX-License-Identifier: BSD-3-Clause
// Joint statistics of a sharded batch, and operators below batch_norm.
//
// Each rank counts its elements of every channel and computes their mean and
// their squared deviations. One all_gather per mesh dimension combines these
// moments without cancellation. The backward pass sums the gradients of weight
// and bias over ranks, because the gradient of the input depends on both.
#include <dtensor/ops/kernels/batch_norm_impl.h>
#include <dtensor/ops/kernels/local_kernels_impl.h>

#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/error.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/var_mean.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>

namespace dtensor::detail {
namespace {

// Returns the mesh dimensions whose ranks share channels.
std::vector<int64_t> sharing_dims(const Spec& layout) {
  std::vector<int64_t> dims;
  for (int64_t m = 0; m < layout.mesh().ndim(); ++m) {
    const auto& p = layout.placements()[static_cast<size_t>(m)];
    if (layout.mesh().size(m) > 1 && p.is_sharded() && p.dim() != 1) {
      dims.push_back(m);
    }
  }
  return dims;
}

} // namespace

at::Tensor summed_over_ranks(at::Tensor local, const Spec& layout) {
  for (const auto m : sharing_dims(layout)) {
    local = get_group(layout.mesh(), m).all_reduce(local, ReduceOp::kSum);
  }
  return local;
}

double channel_count(const Spec& layout) {
  const auto channels = std::max<int64_t>(layout.sizes()[1], 1);
  const int64_t count = layout.numel() / channels;
  return static_cast<double>(count);
}

std::vector<int64_t> all_but_channels(const at::Tensor& input) {
  std::vector<int64_t> dims(static_cast<size_t>(input.dim()));
  std::iota(dims.begin(), dims.end(), 0);
  dims.erase(dims.begin() + 1);
  return dims;
}

namespace {

// --- statistics --------------------------------------------------------------

// Moments of each channel: number of elements, mean, sum of squared deviations.
at::Tensor local_moments(const at::Tensor& input) { // (3, channels)
  const auto channels = input.size(1);
  const auto options = input.options().dtype(at::kDouble);
  if (input.numel() == 0) {
    return at::zeros({3, channels}, options);
  }
  const auto wide = input.to(at::promoteTypes(input.scalar_type(), at::kFloat));
  const auto [variance, mean] =
      at::var_mean(wide, all_but_channels(input), /*correction=*/0);
  const int64_t elements = input.numel() / channels;
  const auto count = static_cast<double>(elements);
  return at::stack(
      {at::full_like(mean, count, options),
       mean.to(at::kDouble),
       variance.to(at::kDouble) * count});
}

} // namespace

at::Tensor combined_moments(const at::Tensor& all) {
  const auto counts = all.select(1, 0);
  const auto means = all.select(1, 1);
  const auto count = counts.sum(0);
  const auto mean = (counts * means).sum(0) / count.clamp_min(1);
  const auto deviations =
      (all.select(1, 2) + counts * (means - mean).square()).sum(0);
  return at::stack({count, mean, deviations});
}

namespace {

struct Statistics {
  at::Tensor mean;
  at::Tensor variance; // biased
  at::Tensor deviations;
};

Statistics joint_statistics(const at::Tensor& input, const Spec& layout) {
  auto moments = local_moments(input);
  for (const auto m : sharing_dims(layout)) {
    moments = combined_moments(
        get_group(layout.mesh(), m).all_gather(moments.unsqueeze(0), 0));
  }
  return {moments[1], moments[2] / channel_count(layout), moments[2]};
}

void update_running(
    const at::Tensor& running,
    const at::Tensor& value,
    double momentum) {
  if (running.defined()) {
    running.copy_(running.to(at::kDouble) * (1 - momentum) + value * momentum);
  }
}

} // namespace

at::ScalarType vector_dtype(const KernelArgs& args, const at::Tensor& input) {
  for (const auto* name : {"weight", "bias", "running_mean"}) {
    if (args.find(name) >= 0 && args.tensor(name).defined()) {
      return args.tensor(name).scalar_type();
    }
  }
  return input.scalar_type();
}

BatchNormResult normalize_batch(
    const KernelArgs& args,
    const at::Tensor& input,
    const at::Tensor& weight,
    const at::Tensor& bias,
    const Spec& layout) {
  const auto statistics = joint_statistics(input, layout);
  const auto eps = args.real("eps");
  if (args.find("running_mean") >= 0) {
    const auto momentum = args.real("momentum");
    update_running(args.tensor("running_mean"), statistics.mean, momentum);
    update_running(
        args.tensor("running_var"),
        statistics.deviations / (channel_count(layout) - 1),
        momentum);
  }
  const auto dtype = vector_dtype(args, input);
  auto output = at::empty_like(input);
  if (input.numel() > 0) {
    output = std::get<0>(at::native_batch_norm(
        input,
        weight,
        bias,
        statistics.mean.to(dtype),
        statistics.variance.to(dtype),
        /*training=*/false,
        /*momentum=*/0.0,
        eps));
  }
  return {
      std::move(output), statistics.mean, (statistics.variance + eps).rsqrt()};
}

namespace {

// --- gradients ---------------------------------------------------------------

// Returns the gradients for a constant mean and variance.
BatchNormGradients gradients_of_constants(
    const at::Tensor& grad,
    const at::Tensor& input,
    const at::Tensor& weight,
    const BatchNormResult& of) {
  const auto dtype = of.mean.scalar_type();
  if (input.numel() == 0) {
    const auto zeros = at::zeros_like(of.mean);
    return {at::zeros_like(input), zeros, zeros};
  }
  auto [of_input, of_weight, of_bias] = at::native_batch_norm_backward(
      grad,
      input,
      weight,
      of.mean,
      of.inverse_std.pow(-2),
      {},
      {},
      /*train=*/false,
      /*eps=*/0.0,
      {true, true, true});
  return {of_input, of_weight.to(dtype), of_bias.to(dtype)};
}

} // namespace

// Subtracts the gradient that flows through the statistics.
BatchNormGradients batch_norm_gradients(
    const at::Tensor& grad,
    const at::Tensor& input,
    const at::Tensor& weight,
    const BatchNormResult& of,
    const Spec& layout) {
  auto local = gradients_of_constants(grad, input, weight, of);
  const auto means =
      summed_over_ranks(at::stack({local.bias, local.weight}), layout) /
      channel_count(layout);
  const auto scale =
      weight.defined() ? of.inverse_std * weight : of.inverse_std;
  const auto deviations = input - per_channel(of.mean, input);
  const auto through_statistics = per_channel(means[0] * scale, input) +
      deviations * per_channel(means[1] * scale * of.inverse_std, input);
  local.input = (local.input - through_statistics).to(input.scalar_type());
  return local;
}

bool shares_channels(const Spec& layout) {
  return !sharing_dims(layout).empty();
}

void check_running_statistics(
    const KernelArgs& args,
    const Decision& decision,
    bool training) {
  size_t index = 0;
  for (const char* name :
       {"input", "weight", "bias", "running_mean", "running_var"}) {
    if (args.find(name) < 0 || !args.tensor(name).defined()) {
      continue;
    }
    const bool running = std::string_view(name).starts_with("running");
    DTENSOR_CHECK(
        !running || !training || decision.inputs[index] == nullptr,
        "[{}] the layout of {} differs from that of the input's channels, so "
        "it cannot be updated in place. Shard both alike, or replicate both.",
        args.name(),
        name);
    ++index;
  }
}

// --- operators below batch_norm ----------------------------------------------

namespace {

bool is_training_call(const KernelArgs& args) {
  for (const char* name : {"training", "train", "update"}) {
    if (args.find(name) >= 0) {
      return args.flag(name);
    }
  }
  return args.name().find("with_update") != std::string::npos;
}

} // namespace

void batch_norm_local(KernelArgs& args, const Decision& decision) {
  const auto input = args.tensor("input");
  const auto& layout = *decision.outputs[0];
  const bool training = is_training_call(args);
  check_running_statistics(args, decision, training);
  const bool shared = training && shares_channels(layout) &&
      layout.numel() > 0 && !input.is_meta();
  if (!shared) {
    if (layout.numel() == 0) {
      args.run_operator();
    } else {
      zeros_if_empty(args, decision);
    }
    return;
  }
  const auto result = normalize_batch(
      args, input, args.tensor("weight"), args.tensor("bias"), layout);
  const auto dtype = decision.outputs[1]->dtype();
  args.returns(
      result.output, result.mean.to(dtype), result.inverse_std.to(dtype));
  if (decision.outputs.size() > 3) { // the reserve, which other backends use
    args.stack().emplace_back(at::zeros({0}, input.options().dtype(at::kByte)));
  }
}

void batch_norm_backward_local(KernelArgs& args, const Decision& decision) {
  const auto input = args.tensor("input");
  // Without a gradient of the input, the results do not depend on other ranks.
  const auto& layout = decision.outputs[0];
  const bool shared = is_training_call(args) && layout != nullptr &&
      shares_channels(*layout) && layout->numel() > 0 && !input.is_meta();
  if (!shared) {
    zeros_if_empty(args, decision);
    return;
  }
  const bool renamed = args.find("save_var") >= 0;
  const auto saved = args.tensor(renamed ? "save_var" : "save_invstd");
  const auto result = batch_norm_gradients(
      args.tensor("grad_out"),
      input,
      args.tensor("weight"),
      {{}, args.tensor("save_mean"), saved},
      *layout);
  const auto mask = args.at("output_mask").toBoolList();
  args.returns(
      mask[0] ? result.input : at::Tensor(),
      mask[1] ? result.weight : at::Tensor(),
      mask[2] ? result.bias : at::Tensor());
}

} // namespace dtensor::detail

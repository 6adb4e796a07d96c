// SPDX-License-Identifier: BSD-3-Clause
// batch_norm with joint statistics, and batch_norm and instance_norm with
// nothing to normalize. Every rank takes part in the collectives of backward
// passes, so the results on all ranks must depend on the same inputs in the
// same way.
#include <dtensor/ops/kernels/local_kernels_impl.h>

#include <dtensor/ops/kernels/batch_norm_impl.h>
#include <dtensor/ops/kernels/linear_map_impl.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/full.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

namespace dtensor::detail {
namespace {

// --- joint statistics --------------------------------------------------------

// The first derivative uses the fused kernels. If autograd records the first
// derivative, it consists of operators and sums over ranks that can be
// differentiated again.

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// A sum over ranks. Its gradient is the sum of the gradients of all ranks.
struct SumOverRanks : LinearMap {
  explicit SumOverRanks(SpecPtr l) : layout(std::move(l)) {}

  at::Tensor apply(const at::Tensor& t) const override {
    return summed_over_ranks(t.clone(), *layout);
  }
  at::Tensor apply_adjoint(const at::Tensor& t) const override {
    return apply(t);
  }

  SpecPtr layout;
};
using SumOverRanksPtr = c10::intrusive_ptr<SumOverRanks>;

// Returns the gradients of input, weight and bias as functions of all operands
// that can be differentiated again.
variable_list recorded_gradients(
    const at::Tensor& grad,
    const at::Tensor& input,
    const at::Tensor& weight,
    double eps,
    const SumOverRanksPtr& sum) {
  const auto dims = all_but_channels(input);
  const auto mean_over_ranks = [&](const at::Tensor& t) {
    return apply_linear(t, sum) / channel_count(*sum->layout);
  };
  const auto deviations =
      input - per_channel(mean_over_ranks(input.sum(dims)), input);
  const auto inverse_std =
      (mean_over_ranks(deviations.square().sum(dims)) + eps).rsqrt();
  const auto normalized = deviations * per_channel(inverse_std, input);
  const auto of_bias = grad.sum(dims);
  const auto of_weight = (grad * normalized).sum(dims);
  const auto of_input =
      (grad - per_channel(mean_over_ranks(of_bias), input) -
       normalized * per_channel(mean_over_ranks(of_weight), input)) *
      per_channel(inverse_std * weight, input);
  return {of_input, of_weight, of_bias};
}

struct SharedBatchNorm : torch::autograd::Function<SharedBatchNorm> {
  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& input,
      const at::Tensor& weight,
      const at::Tensor& bias,
      const KernelArgs* args,
      const SumOverRanksPtr& sum) {
    auto result = normalize_batch(*args, input, weight, bias, *sum->layout);
    ctx->save_for_backward(
        {input,
         weight,
         result.mean.to(weight.scalar_type()),
         result.inverse_std.to(weight.scalar_type())});
    ctx->saved_data["sum"] = c10::IValue::make_capsule(sum);
    ctx->saved_data["eps"] = args->real("eps");
    return result.output;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto sum = c10::static_intrusive_pointer_cast<SumOverRanks>(
        ctx->saved_data["sum"].toCapsule());
    variable_list result;
    if (c10::GradMode::is_enabled()) {
      const auto eps = ctx->saved_data["eps"].toDouble();
      result = recorded_gradients(grads[0], saved[0], saved[1], eps, sum);
    } else {
      const BatchNormResult of{{}, saved[2], saved[3]};
      auto all =
          batch_norm_gradients(grads[0], saved[0], saved[1], of, *sum->layout);
      result = {all.input, all.weight, all.bias};
    }
    result.resize(5);
    return result;
  }
};

// Returns argument `name`; if it is absent, a vector of `number`.
at::Tensor vector_or(
    const KernelArgs& args,
    const char* name,
    double number,
    const at::Tensor& input) {
  auto vector = args.tensor(name);
  return vector.defined()
      ? vector
      : at::full(
            {input.size(1)},
            number,
            input.options().dtype(vector_dtype(args, input)));
}

// Computes batch_norm in training, of a local input in a layout that shares
// channels, and updates the running statistics. Autograd may record the call.
at::Tensor shared_batch_norm(const KernelArgs& args, const SpecPtr& layout) {
  const auto input = args.tensor("input");
  return SharedBatchNorm::apply(
      input,
      vector_or(args, "weight", 1, input),
      vector_or(args, "bias", 0, input),
      &args,
      c10::make_intrusive<SumOverRanks>(layout));
}

// --- nothing to normalize ----------------------------------------------------

// Returns `t` with one element of padding in each dimension of size 0.
at::Tensor padded(const at::Tensor& t) {
  std::vector<int64_t> pad;
  for (int64_t d = t.dim() - 1; t.defined() && d >= 0; --d) {
    pad.insert(pad.end(), {0, t.size(d) == 0 ? 1 : 0});
  }
  return pad.empty() ? t : at::constant_pad_nd(t, pad, 0);
}

// Runs the operator on padding zeros, and drops the results. Used on a rank
// without elements while other ranks have some.
void on_padded(KernelArgs& args) {
  const auto sizes = args.tensor("input").sizes().vec();
  args.map_tensors([](const at::Tensor& t, const char*) { return padded(t); });
  auto output = args.compute();
  for (size_t d = 0; d < sizes.size(); ++d) {
    output = output.narrow(static_cast<int64_t>(d), 0, sizes[d]);
  }
  args.returns(std::move(output));
}

// Computes the result for a globally empty input, which batch_norm rejects if
// it has no channels. The result depends on all parameters, so that each has a
// gradient.
at::Tensor scaled_and_shifted(const KernelArgs& args) {
  auto output = args.tensor("input");
  std::vector<int64_t> shape(static_cast<size_t>(output.dim()), 1);
  shape[1] = output.size(1);
  if (const auto weight = args.tensor("weight"); weight.defined()) {
    output = output * weight.view(shape);
  }
  if (const auto bias = args.tensor("bias"); bias.defined()) {
    output = output + bias.view(shape);
  }
  return args.tensor("input").is_same(output) ? output.clone() : output;
}

} // namespace

const char* training_flag(ChannelNorm norm) {
  return norm == ChannelNorm::kBatch ? "training" : "use_input_stats";
}

LocalKernel channel_norm_local(ChannelNorm norm) {
  return boxed([norm](KernelArgs& args, const Decision& decision) {
    const bool training = args.flag(training_flag(norm));
    check_running_statistics(args, decision, training);
    const auto input = args.tensor("input");
    const auto& layout = decision.outputs[0];
    if (norm == ChannelNorm::kBatch && training && layout->numel() > 0 &&
        shares_channels(*layout) && !input.is_meta()) {
      args.returns(shared_batch_norm(args, layout));
    } else if (input.numel() > 0 || input.dim() < 2) {
      args.run_operator();
    } else if (layout->numel() > 0) {
      on_padded(args);
    } else {
      args.returns(scaled_and_shifted(args).to(layout->dtype()));
    }
  });
}

} // namespace dtensor::detail

// SPDX-License-Identifier: BSD-3-Clause
// batch_norm and instance_norm with nothing to normalize. Every rank takes part
// in the collectives of backward passes, so the results on all ranks must
// depend on the same inputs in the same way.
#include <dtensor/ops/kernels/local_kernels_impl.h>

#include <dtensor/ops/kernels/batch_norm_impl.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/constant_pad_nd.h>

namespace dtensor::detail {
namespace {

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
  auto& stack = args.stack();
  args.map_tensors([](const at::Tensor& t, size_t) { return padded(t); });
  args.run_operator();
  auto output = stack.back().toTensor();
  for (size_t d = 0; d < sizes.size(); ++d) {
    output = output.narrow(static_cast<int64_t>(d), 0, sizes[d]);
  }
  stack.back() = std::move(output);
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

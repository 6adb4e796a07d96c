// SPDX-License-Identifier: BSD-3-Clause
// Means over a sharded batch.
#include <dtensor/ops/kernels/local_kernels_impl.h>

#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/ops/kernels/kernel_args_impl.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/stack.h>

#include <algorithm>

namespace dtensor {
namespace {

bool cuts_any(const Spec& spec) {
  return std::ranges::any_of(
      spec.placements(), [](const auto& p) { return p.is_sharded(); });
}

double numel_of_inputs(const Decision& decision, size_t first) {
  int64_t numel = 0;
  for (size_t i = first; i < decision.inputs.size(); ++i) {
    if (decision.inputs[i] != nullptr) {
      if (decision.inputs[i]->numel() == 0) {
        return 0;
      }
      numel = std::max(numel, decision.inputs[i]->numel());
    }
  }
  return static_cast<double>(numel);
}

} // namespace

// Computes a mean as a sum divided by the global number of elements. Operands
// that broadcast against each other are never sharded here, and use the plain
// mean.
void detail::loss_local(KernelArgs& args, const Decision& decision) {
  const bool sharded = decision.outputs[0]->has_partial();
  if (!sharded || args.integer("reduction") != at::Reduction::Mean) {
    args.run_operator();
    return;
  }
  args.set("reduction", int64_t{at::Reduction::Sum});
  args.run_operator();
  args.stack().back() =
      args.stack().back().toTensor() / numel_of_inputs(decision, 0);
}

void detail::loss_backward_local(KernelArgs& args, const Decision& decision) {
  if (args.integer("reduction") != at::Reduction::Mean ||
      !cuts_any(*decision.outputs[0])) {
    args.run_operator();
    return;
  }
  args.set("reduction", int64_t{at::Reduction::Sum});
  args.run_operator();
  args.stack().back() =
      args.stack().back().toTensor() / numel_of_inputs(decision, 1);
}

void detail::nll_local(KernelArgs& args, const Decision& decision) {
  const auto& self = *decision.inputs[0];
  if (args.integer("reduction") != at::Reduction::Mean || !cuts_any(self)) {
    args.run_operator();
    return;
  }
  args.set("reduction", int64_t{at::Reduction::Sum});
  args.run_operator();
  const auto total_weight = torch::jit::pop(args.stack()).toTensor();
  const auto sum = torch::jit::pop(args.stack()).toTensor();
  auto sums = at::stack({sum, total_weight});
  for (int64_t m = 0; m < self.mesh().ndim(); ++m) {
    if (self.placements()[static_cast<size_t>(m)].is_sharded()) {
      sums = get_group(self.mesh(), m).all_reduce(sums, ReduceOp::kSum);
    }
  }
  torch::jit::push(args.stack(), sums[0] / sums[1], sums[1]);
}

} // namespace dtensor

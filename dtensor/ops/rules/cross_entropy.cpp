// SPDX-License-Identifier: BSD-3-Clause
// nll_loss: classes are whole, samples may be sharded. cross_entropy: see
// ops/cross_entropy_impl.h; with probabilities it is written with DTensor
// operators.
#include <dtensor/ops/rules/loss_impl.h>

#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/error.h>
#include <dtensor/ops/cross_entropy_impl.h>
#include <dtensor/ops/rules/families_impl.h>
#include <dtensor/tensor/is_dtensor.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/stack.h>

namespace dtensor {
namespace {

using detail::cuts_any;
using detail::dense;
using detail::keep_specs;
using detail::keeps_shape;
using detail::set_arg;

constexpr auto kSum = ReduceOp::kSum;

// Dimension `d` of the logits, in the target.
int64_t target_dim(int64_t d) {
  return d == 0 ? 0 : d - 1;
}

// self, target, weight? -> loss, total weight. The local kernel makes the sums
// of a mean whole.
Strategies nll_forward(const OpCall& call, int64_t) {
  Strategies all;
  const auto dim = call.inputs[0].dim();
  for (int64_t d = 0; dim > 1 && d < dim; ++d) {
    if (d == 1) {
      continue;
    }
    Strategy s;
    s.inputs.resize(call.inputs.size(), Replicate());
    s.inputs[0] = Shard(d);
    s.inputs[1] = Shard(target_dim(d));
    switch (call.int_arg("reduction")) {
      case at::Reduction::None:
        s.outputs = {Shard(target_dim(d)), Replicate()};
        break;
      case at::Reduction::Sum:
        s.outputs = {Partial(kSum), Partial(kSum)};
        break;
      default:
        s.outputs = {Replicate(), Replicate()};
    }
    all.push_back(std::move(s));
  }
  return all;
}

std::vector<OutputMeta> nll_forward_meta(const OpCall& call) {
  const auto& self = *call.inputs[0].spec;
  const auto scalar = dense({}, self.dtype());
  return {
      keeps_shape(call) ? dense(call.inputs[1].sizes(), self.dtype()) : scalar,
      scalar};
}

void nll_forward_local(
    const c10::OperatorHandle& op,
    const Decision& decision,
    torch::jit::Stack* stack) {
  const auto& self = *decision.inputs[0];
  const detail::KernelArgs args(op, *stack);
  if (args.integer("reduction") != at::Reduction::Mean || !cuts_any(self)) {
    op.callBoxed(stack);
    return;
  }
  set_arg(op, stack, "reduction", int64_t{at::Reduction::Sum});
  op.callBoxed(stack);
  const auto total_weight = torch::jit::pop(*stack).toTensor();
  const auto sum = torch::jit::pop(*stack).toTensor();
  auto sums = at::stack({sum, total_weight});
  for (int64_t m = 0; m < self.mesh().ndim(); ++m) {
    if (self.placements()[static_cast<size_t>(m)].cuts()) {
      sums = get_group(self.mesh(), m).all_reduce(sums, kSum);
    }
  }
  torch::jit::push(*stack, sums[0] / sums[1], sums[1]);
}

// grad_output, self, target, weight?, total_weight -> gradient of self
Strategies nll_backward(const OpCall& call, int64_t) {
  Strategies all;
  const auto dim = call.inputs[1].dim();
  for (int64_t d = 0; dim > 1 && d < dim; ++d) {
    if (d == 1) {
      continue;
    }
    Strategy s;
    s.inputs.resize(call.inputs.size(), Replicate());
    s.inputs[0] = keeps_shape(call) ? Shard(target_dim(d)) : Replicate();
    s.inputs[1] = Shard(d);
    s.inputs[2] = Shard(target_dim(d));
    s.outputs = {Shard(d)};
    all.push_back(s);
    if (call.int_arg("reduction") == at::Reduction::Sum) {
      s.inputs.back() = Partial(kSum); // not used
      all.push_back(std::move(s));
    }
  }
  return all;
}

std::vector<OutputMeta> nll_backward_meta(const OpCall& call) {
  const auto& self = *call.inputs[1].spec;
  return {dense(self.sizes(), self.dtype())};
}

at::Tensor apply_reduction(
    const at::Tensor& products,
    int64_t class_dim,
    int64_t classes,
    int64_t reduction) {
  if (reduction == at::Reduction::None) {
    return -products.sum(class_dim);
  }
  const auto sum = -products.sum();
  return reduction == at::Reduction::Sum ? sum
                                         : sum /
          (static_cast<double>(products.numel()) /
           static_cast<double>(classes));
}

// A distribution over classes for each sample, in the shape of the logits.
at::Tensor with_probabilities(const detail::KernelArgs& args) {
  const auto logits = args.tensor("self");
  const int64_t class_dim = logits.dim() == 1 ? 0 : 1;
  const auto classes = logits.size(class_dim);
  const auto smoothing = args.real("label_smoothing");
  DTENSOR_CHECK_VALUE(
      args.integer("ignore_index") < 0,
      "cross_entropy",
      "ignore_index is not supported for floating point targets. Leave it "
      "out.");
  auto target = args.tensor("target");
  if (smoothing > 0) {
    target =
        target * (1 - smoothing) + smoothing / static_cast<double>(classes);
  }
  auto products = at::log_softmax(logits, class_dim) * target;
  if (auto weight = args.tensor("weight"); weight.defined()) {
    std::vector<int64_t> shape(static_cast<size_t>(logits.dim()), 1);
    shape[static_cast<size_t>(class_dim)] = classes;
    products = products * weight.view(shape);
  }
  return apply_reduction(
      products, class_dim, classes, args.integer("reduction"));
}

void cross_entropy(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  detail::KernelArgs args(op, *stack);
  const auto logits = args.tensor("self");
  const auto target = args.tensor("target");
  DTENSOR_CHECK(
      is_dtensor(logits),
      "cross_entropy",
      "got mixed plain tensor and DTensor: the logits are plain, the target "
      "or the weight is a DTensor. Make the logits a DTensor.");
  if (target.sizes() == logits.sizes() &&
      c10::isFloatingType(target.scalar_type())) {
    args.returns(with_probabilities(args));
    return;
  }
  detail::CrossEntropyOptions options;
  options.weight = args.tensor("weight");
  options.reduction = args.integer("reduction");
  options.ignore_index = args.integer("ignore_index");
  options.label_smoothing = args.real("label_smoothing");
  args.returns(detail::cross_entropy(logits, target, options));
}

} // namespace

DTENSOR_RULES(cross_entropy) {
  for (const char* name : {"nll_loss_forward", "nll_loss2d_forward"}) {
    rules.dim_rule(name, nll_forward)
        .with_meta(nll_forward_meta)
        .with_localize(keep_specs)
        .with_local_kernel(nll_forward_local);
  }
  for (const char* name : {"nll_loss_backward", "nll_loss2d_backward"}) {
    rules.dim_rule(name, nll_backward).with_meta(nll_backward_meta);
  }
  rules.kernel("cross_entropy_loss", cross_entropy);
}

} // namespace dtensor

// SPDX-License-Identifier: BSD-3-Clause
// cross_entropy of DTensors: with class indices see cross_entropy_impl.h, with
// probabilities it is written with DTensor operators.
#include <dtensor/error.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/cross_entropy_impl.h>
#include <dtensor/ops/kernels/kernel_args_impl.h>
#include <dtensor/tensor/is_dtensor.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/log_softmax.h>

namespace dtensor {
namespace {

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
  rules.kernel("cross_entropy_loss", cross_entropy);
}

} // namespace dtensor

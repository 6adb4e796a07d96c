// SPDX-License-Identifier: BSD-3-Clause
// cross_entropy of DTensors. Class indices use cross_entropy_impl.h;
// probabilities use DTensor operators. Also nll_loss in a loss_parallel scope.
#include <dtensor/error.h>
#include <dtensor/layout/spec_impl.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/install/kernels_impl.h>
#include <dtensor/ops/kernels/cross_entropy_impl.h>
#include <dtensor/ops/kernels/kernel_args_impl.h>
#include <dtensor/ops/kernels/over_shards_impl.h>
#include <dtensor/tensor/autograd_impl.h>
#include <dtensor/tensor/meta_impl.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/log_softmax.h>

#include <algorithm>

namespace dtensor {
namespace {

using namespace detail;

// Returns `t`; a plain `t` as a replicated DTensor. Ranks outside the mesh hold
// no element of it.
at::Tensor
as_distributed(const char* argument, const at::Tensor& t, const Spec& logits) {
  if (is_dtensor(t)) {
    return t;
  }
  check_may_be_plain(argument, t, logits);
  return from_local_autograd(
      logits.mesh().contains_this_rank() ? t : t.new_empty({0}),
      Spec::make(
          logits.mesh(),
          replicated_placements(logits.mesh()),
          t.sizes(),
          t.strides(),
          t.scalar_type(),
          "cross_entropy"));
}

// Computes log_softmax over sharded classes: two reductions of one number per
// sample, and no logit moves. Computes in float32 at least.
at::Tensor sharded_log_softmax(const at::Tensor& logits, int64_t class_dim) {
  const auto x = logits.to(accumulation_dtype(logits.scalar_type()));
  const auto shifted = x - x.detach().amax(class_dim, /*keepdim=*/true);
  const auto sum = shifted.exp().sum(class_dim, /*keepdim=*/true);
  return shifted - sum.log();
}

at::Tensor log_probabilities(const at::Tensor& logits, int64_t class_dim) {
  const auto placements = spec_of(logits)->placements();
  const bool is_sharded = loss_parallel_depth() > 0 &&
      std::ranges::any_of(placements, [&](const auto& p) {
                            return p.is_sharded(class_dim);
                          });
  return is_sharded ? sharded_log_softmax(logits, class_dim)
                    : at::log_softmax(logits, class_dim);
}

// Redistributes the loss as for class indices: batch dimensions of the
// unreduced loss stay sharded, a sum over a sharded batch is Partial, and any
// other loss is replicated. A sum of a Partial target keeps the target's
// reduction, such as Partial(avg), because the operators above do not shard a
// batch with fewer samples than ranks.
at::Tensor placed_loss(
    const at::Tensor& loss,
    const Spec& logits,
    int64_t class_dim,
    int64_t reduction) {
  Placements placements(spec_of(loss)->placements());
  for (size_t m = 0; m < placements.size(); ++m) {
    const auto& p = logits.placements()[m];
    const bool shards_batch = p.is_sharded() && !p.is_sharded(class_dim);
    if (!shards_batch || reduction == at::Reduction::Mean) {
      placements[m] = Replicate();
    } else if (reduction == at::Reduction::None) {
      placements[m] = p.dim() > class_dim ? p.with_dim(p.dim() - 1) : p;
    } else if (!placements[m].is_partial()) {
      placements[m] = Partial(ReduceOp::kSum);
    }
  }
  return redistribute_autograd(
      loss, spec_of(loss)->with_placements(placements));
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

// Computes the loss for targets that are a distribution over classes per
// sample, in the shape of the logits.
at::Tensor with_probabilities(const KernelArgs& args) {
  const auto logits = args.tensor("self");
  const int64_t class_dim = logits.dim() == 1 ? 0 : 1;
  const auto classes = logits.size(class_dim);
  const auto smoothing = args.real("label_smoothing");
  DTENSOR_CHECK_VALUE(
      args.integer("ignore_index") < 0,
      "[cross_entropy] ignore_index is not supported for floating point "
      "targets. Leave it out.");
  const auto& spec = *spec_of(logits);
  auto target = as_distributed("the target", args.tensor("target"), spec);
  if (smoothing > 0) {
    target =
        target * (1 - smoothing) + smoothing / static_cast<double>(classes);
  }
  auto products = log_probabilities(logits, class_dim) * target;
  if (auto weight = args.tensor("weight"); weight.defined()) {
    std::vector<int64_t> shape(static_cast<size_t>(logits.dim()), 1);
    shape[static_cast<size_t>(class_dim)] = classes;
    products = products * as_distributed("weight", weight, spec).view(shape);
  }
  const auto reduction = args.integer("reduction");
  const auto loss = apply_reduction(products, class_dim, classes, reduction);
  return placed_loss(loss, spec, class_dim, reduction).to(logits.dtype());
}

void cross_entropy_kernel(KernelArgs& args) {
  const auto logits = args.tensor("self");
  const auto target = args.tensor("target");
  DTENSOR_CHECK(
      is_dtensor(logits),
      "[cross_entropy] got mixed plain tensor and DTensor: the logits are "
      "plain, the target or the weight is a DTensor. Make the logits a "
      "DTensor.");
  if (target.sizes() == logits.sizes() &&
      c10::isFloatingType(target.scalar_type())) {
    args.returns(with_probabilities(args));
    return;
  }
  CrossEntropyOptions options;
  options.weight = args.tensor("weight");
  options.reduction = args.integer("reduction");
  options.ignore_index = args.integer("ignore_index");
  options.label_smoothing = args.real("label_smoothing");
  args.returns(cross_entropy(logits, target, options));
}

// Kernel of nll_loss_nd, which LibTorch decomposes. In a loss_parallel scope,
// plain targets and weights count as replicated, as in cross_entropy.
void nll_loss(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  KernelArgs args(op, *stack);
  const auto scores = args.tensor("self");
  if (is_dtensor(scores) && loss_parallel_depth() > 0) {
    for (const auto* name : {"target", "weight"}) {
      if (const auto t = args.tensor(name); t.defined()) {
        args.set(name, as_distributed(name, t, *spec_of(scores)));
      }
    }
  }
  static const auto decomposed = native_kernel(op, /*above_autograd=*/true);
  decomposed.callBoxed(op, c10::DispatchKeySet(), stack);
}

} // namespace

DTENSOR_RULES(cross_entropy) {
  rules.kernel("cross_entropy_loss", with_args(cross_entropy_kernel));
  rules.kernel("nll_loss_nd", nll_loss);
}

} // namespace dtensor

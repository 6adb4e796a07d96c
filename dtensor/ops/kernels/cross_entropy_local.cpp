// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/kernels/cross_entropy_impl.h>

#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/error.h>
#include <dtensor/ops/kernels/over_shards_impl.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <limits>
#include <utility>

namespace dtensor::detail {
namespace {

// Converts both tensors to the dtype of sums.
std::pair<at::Tensor, at::Tensor> to_accumulate(
    const at::Tensor& logits,
    const at::Tensor& class_weight) {
  const auto dtype = accumulation_dtype(logits.scalar_type());
  return {
      logits.to(dtype),
      class_weight.defined() ? class_weight.to(dtype) : class_weight};
}

at::Tensor reduce_over_classes(
    const CrossEntropyPlan& plan,
    const at::Tensor& t,
    ReduceOp op) {
  return plan.class_mesh_dim < 0
      ? t
      : get_group(plan.logits->mesh(), plan.class_mesh_dim).all_reduce(t, op);
}

struct Targets {
  at::Tensor ignored; // bool
  at::Tensor held;    // bool: this rank has the target's logit
  at::Tensor local;   // local class index; 0 where not held
  at::Tensor global;  // 0 where ignored
};

// Returns each target's class, and its local index on the rank that holds it.
Targets look_up_targets(
    const CrossEntropyPlan& plan,
    const at::Tensor& target) {
  Targets t;
  t.global = target.to(at::kLong); // ignore_index may not fit into uint8
  t.ignored = t.global.eq(plan.ignore_index);
  t.global = t.global.masked_fill(t.ignored, 0);
  const auto outside = t.global.lt(0).logical_or_(t.global.ge(plan.classes()));
  DTENSOR_CHECK_INDEX(
      !outside.any().item<bool>(),
      "[cross_entropy] a target is out of bounds: the number of classes is {}. "
      "Use targets from 0 to {}, or ignore_index ({}).",
      plan.classes(),
      plan.classes() - 1,
      plan.ignore_index);
  const auto mine = plan.my_classes();
  t.held = t.global.ge(mine.begin)
               .logical_and_(t.global.lt(mine.end))
               .logical_and_(t.ignored.logical_not());
  t.local = (t.global - mine.begin).masked_fill(t.held.logical_not(), 0);
  return t;
}

// Returns the weights of this rank's classes, which broadcast against logits.
at::Tensor my_weight(const CrossEntropyPlan& plan, const at::Tensor& weight) {
  const auto mine = plan.my_classes();
  return along_dim(
      weight.narrow(0, mine.begin, mine.size()),
      plan.class_dim,
      plan.logits->dim());
}

// Returns the logit of each target minus the largest logit, on the rank that
// holds it.
at::Tensor target_logit(
    const CrossEntropyPlan& plan,
    const at::Tensor& shifted,
    const Targets& t) {
  if (shifted.size(plan.class_dim) == 0) {
    return at::zeros(t.held.sizes(), shifted.options());
  }
  return shifted.gather(plan.class_dim, t.local.unsqueeze(plan.class_dim))
      .squeeze(plan.class_dim)
      .masked_fill_(t.held.logical_not(), 0);
}

// Returns the weight of each sample's class; 0 for ignored samples.
at::Tensor sample_weight(
    const Targets& t,
    const at::Tensor& weight,
    const at::Tensor& like) {
  auto w = weight.defined()
      ? weight.index_select(0, t.global.reshape(-1)).view(t.global.sizes())
      : at::ones_like(like);
  return w.masked_fill(t.ignored, 0);
}

// Sums `t` over the mesh dimensions that shard samples.
at::Tensor sum_over_batch(const CrossEntropyPlan& plan, at::Tensor t) {
  for (int64_t m = 0; m < plan.logits->mesh().ndim(); ++m) {
    const auto& p = plan.logits->placements()[static_cast<size_t>(m)];
    if (p.is_sharded() && m != plan.class_mesh_dim) {
      t = get_group(plan.logits->mesh(), m).all_reduce(t, ReduceOp::kSum);
    }
  }
  return t;
}

// Returns the sum of the weights of all classes, for the smoothed part of the
// loss.
at::Scalar all_weights(const CrossEntropyPlan& plan, const at::Tensor& weight) {
  return weight.defined() ? weight.sum().item()
                          : at::Scalar(static_cast<double>(plan.classes()));
}

double smoothing_per_class(const CrossEntropyPlan& plan) {
  return plan.label_smoothing / static_cast<double>(plan.classes());
}

// Sums over all classes, of logits minus the largest one.
struct ClassSums {
  at::Tensor exponentials;
  at::Tensor weighted; // weight * logit; only for smoothing
  at::Tensor picked;   // the target's logit
};

ClassSums sums_over_classes(
    const CrossEntropyPlan& plan,
    const at::Tensor& shifted, // overwritten
    const at::Tensor& weight,
    const Targets& t) {
  ClassSums sums;
  sums.picked = target_logit(plan, shifted, t);
  const auto c = plan.class_dim;
  at::Tensor smooth;
  if (plan.label_smoothing > 0) {
    smooth = weight.defined() ? (shifted * my_weight(plan, weight)).sum(c)
                              : shifted.sum(c);
  }
  auto both = shifted.exp_().sum(c);
  if (plan.label_smoothing > 0) {
    both = at::stack({both, smooth});
  }
  both = reduce_over_classes(plan, both, ReduceOp::kSum);
  sums.picked = reduce_over_classes(plan, sums.picked, ReduceOp::kSum);
  sums.exponentials = plan.label_smoothing > 0 ? both[0] : both;
  sums.weighted = plan.label_smoothing > 0 ? both[1] : smooth;
  return sums;
}

void reduce_loss(
    const CrossEntropyPlan& plan,
    const at::Tensor& losses,
    const at::Tensor& weights,
    CrossEntropyState& state) {
  const auto dtype = plan.output->dtype();
  if (plan.reduction == at::Reduction::None) {
    state.loss = losses.to(dtype);
  } else if (plan.reduction == at::Reduction::Sum) {
    state.loss = losses.sum().to(dtype);
  } else {
    const auto sums =
        sum_over_batch(plan, at::stack({losses.sum(), weights.sum()}));
    state.total = sums[1];
    // Smoothing adds to the losses even where the weights are zero, but a mean
    // with total weight zero is NaN.
    const double none = std::numeric_limits<double>::quiet_NaN();
    state.loss =
        at::where(state.total == 0, none, sums[0] / state.total).to(dtype);
  }
}

// Returns the factor of each sample's loss in the gradient.
at::Tensor coefficient_of(
    const CrossEntropyPlan& plan,
    const at::Tensor& grad,
    const at::Tensor& total,
    const Targets& t) {
  const auto coefficient =
      plan.reduction == at::Reduction::Mean ? grad / total : grad;
  // If all samples are ignored, grad / total is not finite, and 0 times it is
  // NaN.
  return at::where(t.ignored, 0, coefficient);
}

// Makes the results on meta tensors, where LibTorch lacks some operators of the
// real computation.
CrossEntropyState forward_without_data(
    const CrossEntropyPlan& plan,
    const at::Tensor& logits,
    const at::Tensor& target) {
  const auto options =
      logits.options().dtype(accumulation_dtype(logits.scalar_type()));
  CrossEntropyState state;
  state.loss = at::empty(plan.output->local_sizes(), logits.options());
  state.log_sum = at::empty(target.sizes(), options);
  if (plan.reduction == at::Reduction::Mean) {
    state.total = at::empty({}, options);
  }
  return state;
}

// Makes a gradient on meta tensors for second derivatives. It depends on the
// same inputs as the real gradient.
at::Tensor backward_without_data(
    const CrossEntropyPlan& plan,
    const at::Tensor& grad,
    const at::Tensor& logits,
    const at::Tensor& probabilities) {
  if (!probabilities.defined()) {
    return at::empty_like(logits);
  }
  const auto each = grad.dim() == 0 ? grad : grad.unsqueeze(plan.class_dim);
  return (probabilities * each).to(logits.scalar_type());
}

} // namespace

Interval CrossEntropyPlan::my_classes() const {
  if (class_mesh_dim < 0) {
    return {0, classes()};
  }
  const auto& mesh = logits->mesh();
  const auto& sharding =
      logits->placements()[static_cast<size_t>(class_mesh_dim)];
  return chunk(
      classes(),
      mesh.size(class_mesh_dim),
      mesh.get_local_rank(class_mesh_dim),
      sharding.unit());
}

CrossEntropyState cross_entropy_forward(
    const CrossEntropyPlan& plan,
    const at::Tensor& logits,
    const at::Tensor& target,
    const at::Tensor& class_weight) {
  if (logits.is_meta()) {
    return forward_without_data(plan, logits, target);
  }
  const auto [x, weight] = to_accumulate(logits, class_weight);
  const auto t = look_up_targets(plan, target);

  const auto max = reduce_over_classes(
      plan,
      greatest_along(x, plan.class_dim).squeeze(plan.class_dim),
      ReduceOp::kMax);
  const auto sums =
      sums_over_classes(plan, x - max.unsqueeze(plan.class_dim), weight, t);

  CrossEntropyState state;
  const auto log_sum = sums.exponentials.log();
  state.log_sum = log_sum + max;
  const auto weights = sample_weight(t, weight, log_sum);
  auto losses = (log_sum - sums.picked) * weights;
  if (plan.label_smoothing > 0) {
    losses = losses * (1 - plan.label_smoothing) +
        (log_sum * all_weights(plan, weight) - sums.weighted) *
            smoothing_per_class(plan);
  }
  losses.masked_fill_(t.ignored, 0);
  reduce_loss(plan, losses, weights, state);
  return state;
}

// In the formula below, s is label_smoothing, C the number of classes, w the
// class weights, W their sum, w_t the weight of the target, and p the softmax.
at::Tensor cross_entropy_backward(
    const CrossEntropyPlan& plan,
    const at::Tensor& grad,
    const at::Tensor& logits,
    const at::Tensor& target,
    const at::Tensor& class_weight,
    const at::Tensor& log_sum,
    const at::Tensor& total,
    const at::Tensor& probabilities) {
  if (logits.is_meta()) {
    return backward_without_data(plan, grad, logits, probabilities);
  }
  const auto c = plan.class_dim;
  const auto [x, weight] = to_accumulate(logits, class_weight);
  const auto t = look_up_targets(plan, target);
  const auto coefficient =
      coefficient_of(plan, grad.to(x.scalar_type()), total, t);
  // (1 - s) w_t (p - onehot) + s/C (W p - w), each times the coefficient
  const auto hard =
      sample_weight(t, weight, coefficient) * (1 - plan.label_smoothing);
  auto of_softmax = hard;
  if (plan.label_smoothing > 0) {
    of_softmax = of_softmax +
        all_weights(plan, weight).toDouble() * smoothing_per_class(plan);
  }
  const auto factor = (of_softmax * coefficient).unsqueeze(c);
  auto gradient = probabilities.defined()
      ? probabilities * factor
      : (x - log_sum.unsqueeze(c)).exp_().mul_(factor);
  if (x.size(c) > 0) {
    const auto picked =
        (-hard * coefficient).masked_fill_(t.held.logical_not(), 0);
    gradient.scatter_add_(c, t.local.unsqueeze(c), picked.unsqueeze(c));
  }
  if (plan.label_smoothing > 0) {
    const auto each = coefficient.unsqueeze(c) * smoothing_per_class(plan);
    gradient.sub_(weight.defined() ? my_weight(plan, weight) * each : each);
  }
  return gradient.to(logits.scalar_type());
}

} // namespace dtensor::detail

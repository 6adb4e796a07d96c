// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/kernels/cross_entropy_impl.h>

#include <dtensor/comm/rank/rank_local_impl.h>
#include <dtensor/error.h>
#include <dtensor/layout/spec_impl.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/scopes/explicit_redistribution_impl.h>
#include <dtensor/redistribute/execute.h>
#include <dtensor/tensor/autograd_impl.h>
#include <dtensor/tensor/layout_steps_impl.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/wrap_impl.h>

#include <ATen/DTensorState.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

namespace dtensor::detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kCrossEntropy = "cross_entropy";

Placement without_class(const Placement& p, int64_t class_dim) {
  return p.is_sharded() && p.dim() > class_dim ? p.with_dim(p.dim() - 1) : p;
}

// Returns the mesh dimension that shards the classes; -1 if there is none.
int64_t find_class_mesh_dim(const Spec& logits, int64_t class_dim) {
  int64_t found = -1;
  for (int64_t m = 0; m < logits.mesh().ndim(); ++m) {
    const auto& p = logits.placements()[static_cast<size_t>(m)];
    if (!p.is_sharded(class_dim)) {
      continue;
    }
    DTENSOR_CHECK_VALUE(
        found < 0 && p.is_shard(),
        "[loss_parallel] the class dimension must be sharded on one mesh "
        "dimension, as Shard({}), but the logits are {}. Redistribute them.",
        class_dim,
        logits);
    found = m;
  }
  return found;
}

// Returns the layout of the logits for the computation: batch dimensions keep
// their placements, and classes are unsharded unless they may stay sharded.
SpecPtr logits_layout(const Spec& logits, int64_t class_dim, bool parallel) {
  Placements placements(logits.placements().begin(), logits.placements().end());
  for (auto& p : placements) {
    if (p.is_partial() || (p.is_sharded(class_dim) && !parallel)) {
      p = Replicate();
    }
  }
  return logits.with_placements(placements);
}

Placements target_layout(const Spec& logits, int64_t class_dim) {
  Placements placements;
  for (const auto& p : logits.placements()) {
    placements.push_back(
        p.is_sharded(class_dim) ? Replicate() : without_class(p, class_dim));
  }
  return placements;
}

void check_target(
    const Spec& logits,
    const at::Tensor& target,
    int64_t class_dim) {
  DTENSOR_CHECK_TYPE(
      target.scalar_type() == at::kLong || target.scalar_type() == at::kByte,
      "[{}] class indices must be int64 or uint8, but the target is {}. "
      "Convert it, or pass probabilities in the shape of the logits.",
      kCrossEntropy,
      short_name(target.scalar_type()));
  Sizes wanted(logits.sizes().begin(), logits.sizes().end());
  wanted.erase(wanted.begin() + class_dim);
  DTENSOR_CHECK_VALUE(
      target.sizes() == at::IntArrayRef(wanted),
      "[{}] the target has shape {}, but logits {} need {}. Pass one class "
      "index per sample.",
      kCrossEntropy,
      target.sizes(),
      logits,
      at::IntArrayRef(wanted));
}

// Returns the local tensor of `t`, a DTensor in any layout or a plain tensor
// that is replicated. A local tensor that is saved for the backward pass shares
// the version counter of the DTensor, so that a write to `t` is detected.
at::Tensor local_in(
    const char* argument,
    const at::Tensor& t,
    const Spec& logits,
    const Placements& placements) {
  if (is_dtensor(t)) {
    DTENSOR_CHECK(
        spec_of(t)->mesh() == logits.mesh(),
        "[{}] {} is on a different mesh: {} next to {}. Bring both to one "
        "mesh: from_local(x.full_tensor(), mesh) replicates x on a mesh.",
        kCrossEntropy,
        argument,
        *spec_of(t),
        logits);
    return redistribute_local(
        local_counted(t), spec_of(t), spec_of(t)->with_placements(placements));
  }
  check_may_be_plain(argument, t, logits);
  DTENSOR_CHECK_VALUE(
      placements == replicated_placements(logits.mesh()),
      "[{}] {} is a plain tensor, but next to {} every rank needs a different "
      "shard of it. Make it a DTensor with distribute_tensor or from_local.",
      kCrossEntropy,
      argument,
      logits);
  return t;
}

SpecPtr
output_layout(const Spec& logits, int64_t class_dim, int64_t reduction) {
  auto placements = target_layout(logits, class_dim);
  Sizes sizes;
  if (reduction == at::Reduction::None) {
    sizes.assign(logits.sizes().begin(), logits.sizes().end());
    sizes.erase(sizes.begin() + class_dim);
  } else {
    for (auto& p : placements) {
      p = p.is_sharded() && reduction == at::Reduction::Sum
          ? Partial(ReduceOp::kSum)
          : Replicate();
    }
  }
  return Spec::make(
      logits.mesh(), placements, sizes, logits.dtype(), kCrossEntropy);
}

struct PlanHolder : torch::CustomClassHolder {
  explicit PlanHolder(CrossEntropyPlan p) : plan(std::move(p)) {}
  CrossEntropyPlan plan;
};

// Returns the local gradient. If it is differentiated again, the gradient of a
// number that all ranks share is the sum over ranks.
at::Tensor local_grad(const CrossEntropyPlan& plan, const at::Tensor& grad) {
  const auto& spec = spec_of(grad);
  const auto placements = without_partial(plan.output->placements());
  const auto placed =
      redistribute_autograd(grad, spec->with_placements(placements));
  auto layout = placements;
  for (size_t m = 0; m < layout.size(); ++m) {
    if (layout[m].is_replicate() && plan.logits->placements()[m].is_sharded()) {
      layout[m] = Partial(ReduceOp::kSum);
    }
  }
  return to_local_autograd(placed, layout);
}

// Returns the local probabilities for second derivatives. They are computed
// from DTensors, so that the derivatives include the classes on other ranks.
// `log_sum` is treated as a constant; dividing by the sum, which equals 1,
// restores its derivatives.
at::Tensor local_probabilities(
    const CrossEntropyPlan& plan,
    const at::Tensor& logits,
    const at::Tensor& log_sum) {
  const auto& spec = *plan.logits;
  const auto per_sample = Spec::make(
      spec.mesh(),
      target_layout(spec, plan.class_dim),
      output_layout(spec, plan.class_dim, at::Reduction::None)->sizes(),
      log_sum.scalar_type());
  const auto shifted = logits.to(log_sum.scalar_type()) -
      wrap(log_sum, per_sample).unsqueeze(plan.class_dim);
  const auto exponentials = shifted.exp();
  const auto probabilities =
      exponentials / exponentials.sum(plan.class_dim, /*keepdim=*/true);
  // The division chooses another layout if there is a single class.
  return to_local_autograd(redistribute_autograd(
      probabilities,
      spec_of(probabilities)->with_placements(spec.placements())));
}

// Arguments without gradients, passed as one argument: apply() accepts no
// undefined tensors.
struct Constants {
  at::Tensor target;
  at::Tensor weight;
};

struct CrossEntropy : torch::autograd::Function<CrossEntropy> {
  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& logits,
      const Constants& c,
      const CrossEntropyPlan& plan) {
    auto state =
        cross_entropy_forward(plan, local_of(logits), c.target, c.weight);
    ctx->set_materialize_grads(false);
    ctx->save_for_backward(
        {logits, c.target, c.weight, state.log_sum, state.total});
    ctx->saved_data["plan"] =
        c10::IValue::make_capsule(c10::make_intrusive<PlanHolder>(plan));
    return wrap(std::move(state.loss), plan.output);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    variable_list result(3);
    if (!grads[0].defined()) {
      return result;
    }
    const auto& plan =
        static_cast<PlanHolder*>(ctx->saved_data["plan"].toCapsule().get())
            ->plan;
    const auto saved = ctx->get_saved_variables();
    const auto& log_sum = saved[3];
    result[0] = from_local_autograd(
        cross_entropy_backward(
            plan,
            local_grad(plan, grads[0]),
            local_of(saved[0]),
            saved[1],
            saved[2],
            log_sum,
            saved[4],
            c10::GradMode::is_enabled()
                ? local_probabilities(plan, saved[0], log_sum)
                : at::Tensor()),
        gradient_spec(*plan.logits, plan.logits->placements()));
    return result;
  }
};

CrossEntropyPlan make_plan(
    const Spec& logits,
    const CrossEntropyOptions& options) {
  CrossEntropyPlan plan;
  plan.class_dim = logits.dim() == 1 ? 0 : 1;
  const bool parallel = loss_parallel_depth() > 0;
  if (parallel) {
    plan.class_mesh_dim = find_class_mesh_dim(logits, plan.class_dim);
  }
  plan.logits = logits_layout(logits, plan.class_dim, parallel);
  plan.output = output_layout(*plan.logits, plan.class_dim, options.reduction);
  plan.reduction = options.reduction;
  plan.ignore_index = options.ignore_index;
  plan.label_smoothing = options.label_smoothing;
  return plan;
}

void check_options(const Spec& logits, const CrossEntropyOptions& options) {
  DTENSOR_CHECK_VALUE(
      logits.dim() >= 1,
      "[{}] logits need a class dimension, got {}. Pass (C), (N, C) or (N, C, "
      "...).",
      kCrossEntropy,
      logits);
  DTENSOR_CHECK_VALUE(
      options.label_smoothing >= 0 && options.label_smoothing <= 1,
      "[{}] label_smoothing must be between 0 and 1, got {}. Pass 0 for no "
      "smoothing.",
      kCrossEntropy,
      options.label_smoothing);
  if (!options.weight.defined()) {
    return;
  }
  const auto classes = logits.sizes()[logits.dim() == 1 ? 0 : 1];
  DTENSOR_CHECK_VALUE(
      options.weight.dim() == 1 && options.weight.numel() == classes,
      "[{}] weight must have one element per class ({}), got shape {}. Pass "
      "one number for each class.",
      kCrossEntropy,
      classes,
      options.weight.sizes());
  DTENSOR_CHECK_TYPE(
      options.weight.scalar_type() == logits.dtype(),
      "[{}] weight must be {} like the logits, got {}. Convert it.",
      kCrossEntropy,
      short_name(logits.dtype()),
      short_name(options.weight.scalar_type()));
  DTENSOR_CHECK_NOT_IMPLEMENTED(
      !options.weight.requires_grad() || !c10::GradMode::is_enabled(),
      "[{}] weight cannot have a gradient. Detach it.",
      kCrossEntropy);
}

// Reports the redistributions of the arguments to the active contexts.
void report_redistributions(
    const at::Tensor& logits,
    const at::Tensor& target,
    const at::Tensor& weight,
    const CrossEntropyPlan& plan) {
  const auto& mesh = plan.logits->mesh();
  const auto report = [&](const char* argument,
                          const at::Tensor& t,
                          PlacementsRef placements) {
    if (t.defined() && is_dtensor(t) && spec_of(t)->mesh() == mesh) {
      before_redistributing(kCrossEntropy, argument, spec_of(t), placements);
    }
  };
  report("input", logits, plan.logits->placements());
  report("target", target, target_layout(*plan.logits, plan.class_dim));
  report("weight", weight, replicated_placements(mesh));
}

} // namespace

int& loss_parallel_depth() {
  static constinit RankLocal<int> depth;
  return depth.get();
}

void check_may_be_plain(
    const char* argument,
    const at::Tensor& t,
    const Spec& logits) {
  DTENSOR_CHECK(
      t.numel() == 1 || loss_parallel_depth() > 0 ||
          at::get_dtensor_allow_implicit_replication(),
      "[{}] got mixed plain tensor and DTensor: {} is plain next to {}. Make "
      "it a DTensor with distribute_tensor, or open loss_parallel(), in which "
      "a plain target counts as replicated and the classes may stay sharded.",
      kCrossEntropy,
      argument,
      logits);
}

at::Tensor cross_entropy(
    const at::Tensor& logits,
    const at::Tensor& target,
    const CrossEntropyOptions& options) {
  check_options(*spec_of(logits), options);
  const auto plan = make_plan(*spec_of(logits), options);
  check_target(*plan.logits, target, plan.class_dim);
  report_redistributions(logits, target, options.weight, plan);
  if (!plan.logits->mesh().contains_this_rank()) {
    return wrap(at::empty({0}, local_of(logits).options()), plan.output);
  }
  const auto my_target = local_in(
      "the target",
      target,
      *plan.logits,
      target_layout(*plan.logits, plan.class_dim));
  const auto replicated = replicated_placements(plan.logits->mesh());
  const auto weight = options.weight.defined()
      ? local_in("weight", options.weight, *plan.logits, replicated)
      : at::Tensor();
  if (c10::GradMode::is_enabled() && logits.requires_grad()) {
    return CrossEntropy::apply(
        redistribute_autograd(logits, plan.logits),
        Constants{my_target, weight},
        plan);
  }
  const auto local =
      redistribute_local(local_of(logits), spec_of(logits), plan.logits);
  return wrap(
      cross_entropy_forward(plan, local, my_target, weight).loss, plan.output);
}

} // namespace dtensor::detail

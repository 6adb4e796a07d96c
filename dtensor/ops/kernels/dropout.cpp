// SPDX-License-Identifier: BSD-3-Clause
// Dropout. The global index of an element decides whether it is dropped, so
// every layout drops the same elements. x * mask is linear in x: partial sums
// and averages stay partial.
#include <dtensor/ops/registry.h>

#include <dtensor/error.h>
#include <dtensor/layout/spec_impl.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/local_kernels_impl.h>
#include <dtensor/ops/kernels/random_impl.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/wrap_impl.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/native_dropout.h>

namespace dtensor {
namespace {

using namespace detail;

double scale_of(double p) {
  return p == 1 ? 0 : 1 / (1 - p);
}

double probability(const KernelArgs& args) {
  const auto p = args.real("p");
  DTENSOR_CHECK_VALUE(
      p >= 0 && p <= 1,
      "[{}] p must be between 0 and 1, got {}. Pass a probability.",
      args.name(),
      p);
  return p;
}

// Returns the local mask, true where an element is kept; empty on a rank
// outside the mesh.
at::Tensor keep_mask(const Spec& spec, double p) {
  const auto draw = next_draw(spec.mesh());
  return spec.mesh().contains_this_rank()
      ? sample_bernoulli(spec, draw, 1 - p)
      : at::empty(
            {0},
            at::TensorOptions(at::kBool).device(spec.mesh().device_type()));
}

// Returns the placements with Replicate in place of those that do not commute
// with linear operators.
Placements linear_placements(const Spec& spec) {
  Placements placements(spec.placements());
  for (auto& p : placements) {
    if (p.is_partial() && !p.is_partial(ReduceOp::kSum) &&
        !p.is_partial(ReduceOp::kAvg)) {
      p = Replicate();
    }
  }
  return placements;
}

// Kernel below autograd; LibTorch differentiates it with the mask.
void native_dropout(KernelArgs& args) {
  const auto input = args.tensor("input");
  const auto [local, spec] = redistributed(
      args.base_name(), "input", input, linear_placements(*spec_of(input)));
  const auto dropped_spec = spec->with_tensor(
      spec->placements(),
      spec->sizes(),
      dense_strides(spec->sizes(), spec->strides()));
  const auto kept_spec = without_partial(*spec, at::kBool);
  const bool train = args.is_none("train") || args.flag("train");
  const auto p = train ? probability(args) : 0;
  const auto mask = keep_mask(*kept_spec, p).to(local.device());
  auto dropped = local.mul(mask).mul_(scale_of(p));
  args.returns(wrap(std::move(dropped), dropped_spec), wrap(mask, kept_spec));
}

bool keeps_everything(
    const KernelArgs& args,
    const at::Tensor& input,
    double p) {
  return p == 0 || !args.flag("train") || input.numel() == 0;
}

// Returns a DTensor of the numbers 0 and 1 / (1 - p) by which dropout
// multiplies `t`.
at::Tensor draw_noise(const at::Tensor& t, double p) {
  const auto spec = without_partial(*spec_of(t), t.scalar_type());
  return wrap(
      keep_mask(*spec, p).to(t.device(), t.scalar_type()).mul_(scale_of(p)),
      spec);
}

// Kernel above autograd, for calls that need a gradient. LibTorch does not
// differentiate native_dropout of complex numbers.
void dropout(KernelArgs& args) {
  const auto input = args.tensor("input");
  const auto p = probability(args);
  args.returns(
      keeps_everything(args, input, p) ? input
          : input.is_complex()
          ? input * draw_noise(input, p)
          : std::get<0>(at::native_dropout(input, p, true)));
}

void dropout_(KernelArgs& args) {
  auto self = args.tensor("self");
  const auto p = probability(args);
  if (!keeps_everything(args, self, p)) {
    self.mul_(draw_noise(self, p));
  }
  args.returns(self);
}

// The gradient of dropout is linear in the gradient of its result.
Strategies native_dropout_backward(const OpCall& call, int64_t) {
  Strategies all;
  for (int64_t d = 0; d < call.inputs[0].dim(); ++d) {
    all.push_back({{Shard(d)}, {Shard(d), Shard(d)}});
  }
  // The mask turns integers into floating-point numbers, and partial integer
  // sums may have wrapped around.
  const bool floats = at::isFloatingType(call.inputs[0].spec->dtype());
  for (const auto reduce : {ReduceOp::kSum, ReduceOp::kAvg}) {
    if (!floats) {
      break;
    }
    all.push_back({{Partial(reduce)}, {Partial(reduce), Replicate()}});
  }
  return all;
}

} // namespace

DTENSOR_RULES(dropout) {
  rules.kernel("native_dropout", with_args(native_dropout));
  rules.kernel("dropout", with_args(dropout));
  rules.kernel("dropout_", with_args(dropout_));

  rules.dim_rule("native_dropout_backward", native_dropout_backward)
      .with_meta(pointwise_meta);
}

} // namespace dtensor

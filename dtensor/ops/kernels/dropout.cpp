// SPDX-License-Identifier: BSD-3-Clause
// Dropout, and rrelu, a leaky_relu whose slopes are random in training. The
// global index of an element decides whether it is dropped, so every layout
// drops the same elements. x * mask is linear in x: partial sums and averages
// stay partial.
#include <dtensor/ops/registry.h>

#include <dtensor/error.h>
#include <dtensor/layout/spec_impl.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/local_kernels_impl.h>
#include <dtensor/ops/kernels/random_impl.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/wrap_impl.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/native_dropout.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>

#include <cmath>
#include <tuple>

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

// Returns the local mask, 1 where an element is kept, in the dtype of `spec`.
at::Tensor keep_mask(const Spec& spec, at::Device device, double p) {
  return draw_local(spec, device, [&](Draw draw) {
    return sample_bernoulli(spec, draw, 1 - p).to(device, spec.dtype());
  });
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
  const auto mask = keep_mask(*kept_spec, local.device(), p);
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
  return wrap(keep_mask(*spec, t.device(), p).mul_(scale_of(p)), spec);
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

// --- rrelu -------------------------------------------------------------------

void check_rrelu_arguments(const KernelArgs& args, double lower, double upper) {
  const auto self = args.tensor("self");
  const auto noise = args.tensor("noise");
  const auto dtype = self.scalar_type();
  DTENSOR_CHECK_TYPE(
      c10::isFloatingType(dtype),
      "[{}] needs a floating-point tensor, got {}. Convert it first.",
      args.name(),
      short_name(dtype));
  DTENSOR_CHECK_VALUE(
      lower <= upper && std::isfinite(upper - lower),
      "[{}] needs finite lower <= upper, got {} and {}. Pass finite bounds in "
      "this order.",
      args.name(),
      lower,
      upper);
  DTENSOR_CHECK(
      is_dtensor(self) && is_dtensor(noise),
      "[{}] got mixed plain tensor and DTensor: self and noise must both be "
      "DTensors. Make noise with empty_like(self).",
      args.name());
  DTENSOR_CHECK_VALUE(
      self.sizes() == noise.sizes(),
      "[{}] needs noise of the shape of self, got {} next to {}. Make it with "
      "empty_like(self).",
      args.name(),
      *spec_of(noise),
      *spec_of(self));
}

// Returns the result and the slopes: 1 for positive elements.
std::tuple<at::Tensor, at::Tensor>
with_random_slopes(const KernelArgs& args, double lower, double upper) {
  refuse_generator(args);
  check_rrelu_arguments(args, lower, upper);
  const auto self = args.tensor("self");
  const auto from = spec_of(self);
  check_owned_by_this_rank(args.name(), *from);
  const auto spec = without_partial(*from, self.scalar_type());
  const auto x =
      redistributed(args.name(), "self", self, spec->placements()).local;
  auto slopes = draw_local(*spec, x.device(), [&](Draw draw) {
    const auto drawn =
        sample_uniform(*spec, spec->dtype(), draw, lower, upper).to(x.device());
    return at::where(x.le(0), drawn, at::ones_like(drawn));
  });
  auto result = x.mul(slopes);
  return {wrap(std::move(result), spec), wrap(std::move(slopes), spec)};
}

at::Tensor rrelu_result(const KernelArgs& args) {
  const auto lower = args.real("lower");
  const auto upper = args.real("upper");
  if (!args.flag("training")) {
    return at::leaky_relu(args.tensor("self"), (lower + upper) / 2);
  }
  const auto [result, slopes] = with_random_slopes(args, lower, upper);
  args.tensor("noise").copy_(slopes);
  return result;
}

void rrelu(KernelArgs& args) {
  args.returns(rrelu_result(args));
}

void rrelu_(KernelArgs& args) {
  auto self = args.tensor("self");
  if (is_dtensor(self)) {
    refuse_partial(args, *spec_of(self));
  }
  self.copy_(rrelu_result(args));
  args.returns(self);
}

void rrelu_out(KernelArgs& args) {
  auto out = args.tensor("out");
  out.copy_(rrelu_result(args));
  args.returns(out);
}

} // namespace

DTENSOR_RULES(dropout) {
  rules.kernel("native_dropout", with_args(native_dropout));
  rules.kernel("dropout", with_args(dropout));
  rules.kernel("dropout_", with_args(dropout_));

  rules.kernel("rrelu_with_noise", with_args(rrelu));
  rules.kernel("rrelu_with_noise_", with_args(rrelu_));
  rules.kernel("rrelu_with_noise.out", with_args(rrelu_out));

  rules.dim_rule("native_dropout_backward", native_dropout_backward)
      .with_meta(pointwise_meta);
}

} // namespace dtensor

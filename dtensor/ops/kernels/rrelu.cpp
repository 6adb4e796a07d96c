// SPDX-License-Identifier: BSD-3-Clause
// rrelu: a leaky_relu whose slopes are random in training. The slope of an
// element is drawn by its global index (see random/random.h).
#include <dtensor/ops/kernels/random_impl.h>

#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/scopes/explicit_redistribution_impl.h>
#include <dtensor/redistribute/execute.h>

#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>

#include <cmath>
#include <tuple>

namespace dtensor {
namespace {

using namespace detail;

void check_arguments(const KernelArgs& args, double lower, double upper) {
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
  check_arguments(args, lower, upper);
  const auto self = args.tensor("self");
  const auto from = spec_of(self);
  check_owner(args, *from);
  const auto spec = without_partial(*from, self.scalar_type());
  before_redistributing(args.name(), "self", from, spec->placements());
  const auto draw = next_draw(spec->mesh());
  if (!is_in_mesh(*spec) || self.is_meta()) {
    const auto nothing = [&] {
      return wrap(empty_local(*spec, self.device()), spec);
    };
    return {nothing(), nothing()};
  }
  const auto x = redistribute_local(local_of(self), from, spec);
  const auto drawn =
      sample_uniform(*spec, spec->dtype(), draw, lower, upper).to(x.device());
  auto slopes = at::where(x.le(0), drawn, at::ones_like(drawn));
  auto result = x.mul(slopes);
  return {wrap(std::move(result), spec), wrap(std::move(slopes), spec)};
}

at::Tensor computed(const KernelArgs& args) {
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
  args.returns(computed(args));
}

void rrelu_(KernelArgs& args) {
  auto self = args.tensor("self");
  if (is_dtensor(self)) {
    refuse_partial(args, *spec_of(self));
  }
  self.copy_(computed(args));
  args.returns(self);
}

void rrelu_out(KernelArgs& args) {
  auto out = args.tensor("out");
  out.copy_(computed(args));
  args.returns(out);
}

} // namespace

DTENSOR_RULES(rrelu) {
  rules.kernel("rrelu_with_noise", with_args(rrelu));
  rules.kernel("rrelu_with_noise_", with_args(rrelu_));
  rules.kernel("rrelu_with_noise.out", with_args(rrelu_out));
}

} // namespace dtensor

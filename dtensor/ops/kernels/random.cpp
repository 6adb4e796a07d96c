// SPDX-License-Identifier: BSD-3-Clause
// Random operators. Every element is drawn by its global index (see
// random/random.h), so the values do not depend on the layout.
//
// Each operator has its own kernel. Only probabilities are redistributed. Ranks
// without elements still advance the random stream.
#include <dtensor/ops/kernels/random_impl.h>

#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/registry.h>

#include <limits>

namespace dtensor {
namespace {

using namespace detail;

using RealSampler =
    at::Tensor (*)(const Spec&, at::ScalarType, Draw, double, double);
using RealSampler1 = at::Tensor (*)(const Spec&, at::ScalarType, Draw, double);

void check_floating(const KernelArgs& args) {
  const auto dtype = args.tensor("self").scalar_type();
  DTENSOR_CHECK_TYPE(
      c10::isFloatingType(dtype),
      "[{}] needs a floating-point tensor, got {}. Convert it first.",
      args.name(),
      short_name(dtype));
}

// Throws for dtypes that cannot hold counts from 1.
void check_counts(const KernelArgs& args) {
  const auto dtype = args.tensor("self").scalar_type();
  check_real(args, dtype);
  DTENSOR_CHECK_TYPE(
      dtype != at::kBool,
      "[{}] draws counts from 1, which bool does not hold. Convert the tensor "
      "first.",
      args.name());
}

// Makes the kernel of a distribution with two real parameters.
DTensorKernel real2(
    const char* first,
    const char* second,
    RealSampler sampler,
    bool (*valid)(double, double),
    const char* needs) {
  return with_args([=](KernelArgs& args) {
    check_floating(args);
    const auto a = args.real(first);
    const auto b = args.real(second);
    DTENSOR_CHECK_VALUE(
        valid(a, b),
        "[{}] {}, got {} = {} and {} = {}. Pass values in this range.",
        args.name(),
        needs,
        first,
        a,
        second,
        b);
    fill_self(args, [&](const Spec& spec, Draw draw) {
      return sampler(spec, spec.dtype(), draw, a, b);
    });
  });
}

DTensorKernel real1(
    const char* parameter,
    RealSampler1 sampler,
    bool (*valid)(double),
    const char* needs,
    void (*check_dtype)(const KernelArgs&)) {
  return with_args([=](KernelArgs& args) {
    check_dtype(args);
    const auto a = args.real(parameter);
    DTENSOR_CHECK_VALUE(
        valid(a),
        "[{}] {}, got {}. Pass a number in this range.",
        args.name(),
        needs,
        a);
    fill_self(args, [&](const Spec& spec, Draw draw) {
      return sampler(spec, spec.dtype(), draw, a);
    });
  });
}

// --- Uniform -------------------------------------------------------------

double greatest_real(at::ScalarType dtype) {
  switch (dtype) {
    case at::kHalf:
      return std::numeric_limits<c10::Half>::max();
    case at::kBFloat16:
      return std::numeric_limits<c10::BFloat16>::max();
    case at::kDouble:
      return std::numeric_limits<double>::max();
    default:
      return std::numeric_limits<float>::max();
  }
}

void uniform_(KernelArgs& args) {
  check_floating(args);
  const auto dtype = args.tensor("self").scalar_type();
  const auto most = greatest_real(dtype);
  const auto from = args.real("from");
  const auto to = args.real("to");
  DTENSOR_CHECK_VALUE(
      -most <= from && from <= to && to <= most && to - from <= most,
      "[{}] needs from <= to, and from, to and to - from in the range of {} "
      "(up to {}), got from = {} and to = {}. Pass values in this range.",
      args.name(),
      short_name(dtype),
      most,
      from,
      to);
  fill_self(args, [&](const Spec& spec, Draw draw) {
    return sample_uniform(spec, dtype, draw, from, to);
  });
}

// --- Bernoulli -----------------------------------------------------------

void check_probability(const KernelArgs& args, double p) {
  DTENSOR_CHECK_VALUE(
      p >= 0 && p <= 1,
      "[{}] p must be a probability, got {}. Pass one from 0 to 1.",
      args.name(),
      p);
}

void check_probabilities(const KernelArgs& args) {
  const auto self = args.tensor("self");
  check_real(args, self.scalar_type());
  DTENSOR_CHECK(
      is_dtensor(self),
      "[{}] self is a plain tensor, p is a DTensor. Make self a DTensor.",
      args.name());
  const auto p = args.tensor("p");
  DTENSOR_CHECK(
      is_dtensor(p) || p.numel() == 1,
      "[{}] got mixed plain tensor and DTensor: argument \"p\" is plain next "
      "to {}. Make it a DTensor with distribute_tensor.",
      args.name(),
      *spec_of(self));
}

void check_are_probabilities(const KernelArgs& args, const at::Tensor& local) {
  DTENSOR_CHECK_VALUE(
      local.ge(0).logical_and_(local.le(1)).all().item<bool>(),
      "[{}] p must hold probabilities. Pass values from 0 to 1.",
      args.name());
}

// Returns the local probabilities, of shape and layout `like`.
at::Tensor
local_probabilities(const KernelArgs& args, at::Tensor p, const Spec& like) {
  if (!is_dtensor(p)) {
    check_are_probabilities(args, p);
    return p.expand(like.local_sizes());
  }
  if (p.sizes() != like.sizes()) {
    p = p.expand(like.sizes());
  }
  auto local = redistributed(args.name(), "p", p, like.placements()).local;
  check_are_probabilities(args, local);
  return local;
}

// Checks the argument "p", a number or a tensor of probabilities.
void check_p(const KernelArgs& args) {
  if (args.at("p").isTensor()) {
    check_probabilities(args);
    return;
  }
  check_real(args, args.tensor("self").scalar_type());
  check_probability(args, args.real("p"));
}

at::Tensor draw_with_p(const KernelArgs& args, const Spec& spec, Draw draw) {
  return args.at("p").isTensor()
      ? sample_bernoulli(
            spec, draw, local_probabilities(args, args.tensor("p"), spec))
      : sample_bernoulli(spec, draw, args.real("p"));
}

// Kernel of self.bernoulli_(p).
void bernoulli_(KernelArgs& args) {
  check_p(args);
  fill_self(args, [&](const Spec& spec, Draw draw) {
    return draw_with_p(args, spec, draw);
  });
}

// Kernel of bernoulli(like, p).
void bernoulli_like(KernelArgs& args) {
  check_p(args);
  const auto self = args.tensor("self");
  new_like(args, self, self.scalar_type(), [&](const Spec& spec, Draw draw) {
    return draw_with_p(args, spec, draw);
  });
}

// Kernel of bernoulli(probabilities).
void bernoulli(KernelArgs& args) {
  check_floating(args);
  const auto self = args.tensor("self");
  new_like(args, self, self.scalar_type(), [&](const Spec& spec, Draw draw) {
    return sample_bernoulli(spec, draw, local_probabilities(args, self, spec));
  });
}

// Makes the kernels of rand_like and randn_like.
DTensorKernel real_like(RealSampler sampler) {
  return with_args([=](KernelArgs& args) {
    const auto dtype = dtype_of(args);
    DTENSOR_CHECK_TYPE(
        c10::isFloatingType(dtype),
        "[{}] needs a floating-point dtype, got {}. Pass a dtype such as "
        "float32.",
        args.name(),
        short_name(dtype));
    new_like(args, args.tensor("self"), dtype, [&](const Spec& s, Draw draw) {
      return sampler(s, dtype, draw, 0, 1);
    });
  });
}

} // namespace

DTENSOR_RULES(random) {
  rules.kernel("uniform_", with_args(uniform_));
  const auto not_negative = [](double, double x) { return x >= 0; };
  const auto positive = [](double, double x) { return x > 0; };
  rules.kernel(
      "normal_",
      real2("mean", "std", sample_normal, not_negative, "needs std >= 0"));
  rules.kernel(
      "log_normal_",
      real2("mean", "std", sample_log_normal, positive, "needs std > 0"));
  rules.kernel(
      "cauchy_",
      real2("median", "sigma", sample_cauchy, positive, "needs sigma > 0"));
  rules.kernel(
      "exponential_",
      real1(
          "lambd",
          sample_exponential,
          [](double lambda) { return lambda > 0; },
          "needs lambd > 0",
          check_floating));
  rules.kernel(
      "geometric_",
      real1(
          "p",
          sample_geometric,
          [](double p) { return p > 0 && p < 1; },
          "needs 0 < p < 1",
          check_counts));
  rules.kernel("bernoulli_.float", with_args(bernoulli_));
  rules.kernel("bernoulli_.Tensor", with_args(bernoulli_));
  rules.kernel("bernoulli", with_args(bernoulli));
  rules.kernel("bernoulli.p", with_args(bernoulli_like));
  rules.kernel("bernoulli.Tensor", with_args(bernoulli_like));
  for (const char* name : {"rand_like", "rand_like.generator"}) {
    rules.kernel(name, real_like(sample_uniform));
  }
  for (const char* name : {"randn_like", "randn_like.generator"}) {
    rules.kernel(name, real_like(sample_normal));
  }
}

} // namespace dtensor

// SPDX-License-Identifier: BSD-3-Clause
// Draws from distributions whose parameters are tensors: normal, poisson,
// binomial, gamma and Dirichlet. Every element is drawn by its global index
// (see random/random.h). The parameters broadcast, and the result is sharded as
// they are. Partial parameters are reduced first.
#include <dtensor/ops/kernels/random_impl.h>

#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/local_kernels_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/rules/pointwise_impl.h>
#include <dtensor/ops/scopes/explicit_redistribution_impl.h>
#include <dtensor/ops/scopes/plain_operand_impl.h>
#include <dtensor/redistribute/execute.h>
#include <dtensor/tensor/autograd_impl.h>

#include <ATen/ExpandUtils.h>

#include <cmath>
#include <limits>
#include <vector>

namespace dtensor {
namespace {

using namespace detail;

using Tensors = std::vector<at::Tensor>;

// Names of the parameters of a distribution in the schema.
using Names = std::vector<const char*>;

SpecPtr check_parameters(const KernelArgs& args, const Names& names) {
  SpecPtr first;
  for (const auto* name : names) {
    if (const auto t = args.tensor(name); !first && is_dtensor(t)) {
      first = spec_of(t);
    }
  }
  for (const auto* name : names) {
    const auto t = args.tensor(name);
    if (!is_dtensor(t)) {
      const auto position = static_cast<size_t>(args.find(name));
      check_plain_operand(args.op().schema(), t, position, *first);
      continue;
    }
    check_owned_by_this_rank(args.name(), *spec_of(t));
    check_same_mesh(args.name(), *first, *spec_of(t));
  }
  return first;
}

void check_floating(const KernelArgs& args, const Names& names) {
  for (const auto* name : names) {
    const auto dtype = args.tensor(name).scalar_type();
    DTENSOR_CHECK_TYPE(
        c10::isFloatingType(dtype),
        "[{}] needs floating-point parameters, got {} of {}. Convert it first.",
        args.name(),
        name,
        short_name(dtype));
  }
}

// Returns the placements of a result of shape `sizes`: on each mesh dimension,
// the first shard of a parameter that is not broadcast.
Placements
placements_for(const Tensors& parameters, const Spec& first, SizesRef sizes) {
  Placements result(first.placements().size(), Replicate());
  for (const auto& t : parameters) {
    if (!is_dtensor(t)) {
      continue;
    }
    const auto& spec = *spec_of(t);
    const auto missing = static_cast<int64_t>(sizes.size()) - spec.dim();
    for (size_t m = 0; m < result.size(); ++m) {
      const auto& p = spec.placements()[m];
      if (!p.is_sharded()) {
        continue;
      }
      if (!p.is_chunk() && t.sizes() == sizes) {
        return without_partial(spec.placements());
      }
      const auto dim = p.dim() + missing;
      if (p.is_chunk() && result[m].is_replicate() &&
          operand_shard(spec.sizes(), sizes, dim).is_shard()) {
        result[m] = Shard(dim);
      }
    }
  }
  return result;
}

// Returns the local elements of a parameter, of shape spec.local_sizes(). `t`
// is a plain tensor, or has the shape of the result.
at::Tensor local_parameter(const at::Tensor& t, const Spec& spec) {
  if (!is_dtensor(t) && t.numel() == 1) {
    return t.reshape({}).expand(spec.local_sizes());
  }
  const auto global = is_dtensor(t) ? t : t.expand(spec.sizes());
  const auto from = is_dtensor(t) ? spec_of(t) : replicated_spec(spec, global);
  return redistribute_local(
      is_dtensor(t) ? local_of(t) : global,
      from,
      from->with_placements(spec.placements()));
}

// Returns the layout of the result. If `unshards_last_dim`, no mesh dimension
// shards the last dimension.
SpecPtr result_spec(
    const Tensors& parameters,
    const Spec& first,
    at::ScalarType dtype,
    bool unshards_last_dim) {
  Sizes sizes;
  for (const auto& t : parameters) {
    const auto broadcast = at::infer_size(sizes, t.sizes());
    sizes.assign(broadcast.begin(), broadcast.end());
  }
  auto placements = placements_for(parameters, first, sizes);
  for (auto& p : placements) {
    if (unshards_last_dim &&
        p.is_sharded(static_cast<int64_t>(sizes.size()) - 1)) {
      p = Replicate();
    }
  }
  return Spec::make(first.mesh(), placements, sizes, dtype);
}

// Computes a new tensor of dtype `dtype`: sample(spec, draw, parameters) gets
// the local parameters.
template <class Sample>
void draw_from(
    KernelArgs& args,
    const Names& names,
    at::ScalarType dtype,
    const Sample& sample,
    bool unshards_last_dim = false) {
  refuse_generator(args);
  const auto first = check_parameters(args, names);
  Tensors parameters;
  for (const auto* name : names) {
    parameters.push_back(args.tensor(name));
  }
  const auto spec = result_spec(parameters, *first, dtype, unshards_last_dim);
  for (size_t i = 0; i < names.size(); ++i) {
    auto& t = parameters[i];
    if (is_dtensor(t)) {
      t = t.expand(spec->sizes());
      before_redistributing(
          args.name(), names[i], spec_of(t), spec->placements());
    }
  }
  const bool no_data = parameters[0].is_meta() || parameters.back().is_meta();
  const at::Device device(no_data ? at::kMeta : spec->mesh().device_type());
  auto local = draw_local(*spec, device, [&](Draw draw) {
    Tensors locals;
    for (const auto& t : parameters) {
      locals.push_back(local_parameter(t, *spec));
    }
    return sample(*spec, draw, locals).to(dtype);
  });
  args.returns(wrap(std::move(local), spec));
}

// Samples from the local parameter.
using SampleOfSelf = at::Tensor (*)(
    const KernelArgs& args,
    const Spec& spec,
    Draw draw,
    const at::Tensor& parameter);

// Makes the kernel of a distribution with the parameter self.
DTensorKernel of_self(SampleOfSelf sample, bool unshards_last_dim = false) {
  return with_args([=](KernelArgs& args) {
    check_floating(args, {"self"});
    draw_from(
        args,
        {"self"},
        args.tensor("self").scalar_type(),
        [&](const Spec& spec, Draw draw, const Tensors& p) {
          return sample(args, spec, draw, p[0]);
        },
        unshards_last_dim);
  });
}

// --- Normal --------------------------------------------------------------

void check_deviation(const KernelArgs& args, double std) {
  DTENSOR_CHECK_VALUE(
      std >= 0,
      "[{}] needs std >= 0, got {}. Pass such a number.",
      args.name(),
      std);
}

void check_deviations(const KernelArgs& args, const at::Tensor& local) {
  DTENSOR_CHECK_VALUE(
      local.ge(0).all().item<bool>(),
      "[{}] needs std >= 0, but an element is negative or NaN. Clamp std.",
      args.name());
}

// Kernel of normal(), whose mean or deviation may be a number.
void normal(KernelArgs& args) {
  const bool has_means = args.at("mean").isTensor();
  const bool has_deviations = args.at("std").isTensor();
  Names names;
  if (has_means) {
    names.push_back("mean");
  }
  if (has_deviations) {
    names.push_back("std");
  }
  check_floating(args, names);
  if (!has_deviations) {
    check_deviation(args, args.real("std"));
  }
  const auto dtype = args.tensor(names[0]).scalar_type();
  draw_from(
      args, names, dtype, [&](const Spec& spec, Draw draw, const Tensors& p) {
        if (has_deviations) {
          check_deviations(args, p.back());
        }
        auto drawn = sample_normal(
            spec, dtype, draw, 0, has_deviations ? 1 : args.real("std"));
        if (has_deviations) {
          drawn.mul_(p.back());
        }
        return has_means ? drawn.add_(p[0]) : drawn.add_(args.real("mean"));
      });
}

// --- Counts and gamma ------------------------------------------------------

at::Tensor poisson(
    const KernelArgs& args,
    const Spec& spec,
    Draw draw,
    const at::Tensor& rate) {
  DTENSOR_CHECK_VALUE(
      rate.ge(0).all().item<bool>(),
      "[{}] needs rates >= 0, but an element is negative or NaN. Clamp the "
      "rates.",
      args.name());
  return sample_poisson(spec, spec.dtype(), draw, rate);
}

void binomial(KernelArgs& args) {
  const Names names{"count", "prob"};
  check_floating(args, names);
  const auto dtype = args.tensor("count").scalar_type();
  DTENSOR_CHECK_TYPE(
      args.tensor("prob").scalar_type() == dtype,
      "[{}] needs parameters of one dtype, got {} and {}. Convert one.",
      args.name(),
      short_name(dtype),
      short_name(args.tensor("prob").scalar_type()));
  draw_from(
      args, names, dtype, [&](const Spec& spec, Draw draw, const Tensors& p) {
        return sample_binomial(spec, dtype, draw, p[0], p[1]);
      });
}

double least_positive(at::ScalarType dtype) {
  return dtype == at::kDouble ? std::numeric_limits<double>::min()
      : dtype == at::kHalf
      ? static_cast<double>(std::numeric_limits<c10::Half>::min())
      : static_cast<double>(std::numeric_limits<float>::min());
}

// As in LibTorch, no result is 0, so that its logarithm is finite.
at::Tensor gamma(
    const KernelArgs& /*args*/,
    const Spec& spec,
    Draw draw,
    const at::Tensor& shape) {
  return sample_gamma(spec, at::kDouble, draw, shape)
      .clamp_min_(least_positive(spec.dtype()));
}

at::Tensor dirichlet(
    const KernelArgs& /*args*/,
    const Spec& spec,
    Draw draw,
    const at::Tensor& concentration) {
  const auto g = sample_gamma(spec, at::kDouble, draw, concentration);
  // LibTorch keeps results inside of (0, 1) in the same way.
  const auto most = static_cast<double>(std::nextafter(1.0F, 0.0F));
  return g.div(g.sum(-1, /*keepdim=*/true))
      .clamp_(least_positive(spec.dtype()), most);
}

} // namespace

DTENSOR_RULES(random_parameters) {
  // LibTorch's gradients are zeros.
  const OpTraits zeros{.gradient_from_sizes_only = true};
  for (const auto* name :
       {"normal.Tensor_Tensor", "normal.Tensor_float", "normal.float_Tensor"}) {
    rules.kernel(name, with_args(normal)).with_traits(zeros);
  }
  rules.kernel("poisson", of_self(poisson)).with_traits(zeros);
  rules.kernel("binomial", with_args(binomial));
  rules.kernel("_standard_gamma", of_self(gamma));
  rules.kernel(
      "_sample_dirichlet", of_self(dirichlet, /*unshards_last_dim=*/true));
  for (const char* name : {"_standard_gamma_grad", "_dirichlet_grad"}) {
    rules.dim_rule(name, pointwise_rule()).with_meta(pointwise_meta);
  }
}

} // namespace dtensor

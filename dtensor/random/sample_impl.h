// SPDX-License-Identifier: BSD-3-Clause
// Random samples for a local tensor, determined by global indices.
//
// A Draw is one position of the rank's stream, used by one random operator.
// Element i (row-major global index) of a draw uses either the 32-bit word
// number i of the draw or a 64-bit word. The samplers below map words to
// values.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>
#include <dtensor/api.h>
#include <dtensor/comm/rank_generator_impl.h>
#include <dtensor/layout/spec.h>

#include <cstdint>

namespace dtensor::detail {

/// Takes the next position of this rank's stream, for a tensor on `mesh`.
Draw next_draw(const DeviceMesh& mesh);

/// Return the next position without advancing the stream, and set the next
/// position.
DTENSOR_INTERNAL_API Draw peek_draw();
DTENSOR_INTERNAL_API void set_next_draw(Draw draw);

/// Calls visit(global, local, count) for every run of local elements that are
/// consecutive in both the global and the local tensor. Both indices are
/// row-major.
void for_each_run(
    const Spec& spec,
    c10::function_ref<void(int64_t, int64_t, int64_t)> visit);

// Samplers. Each returns a new contiguous local tensor of spec.local_sizes().
// The tensor has the dtype `dtype` if the sampler has this parameter. `spec`
// must not be Partial.

/// Uniform in [from, to).
at::Tensor sample_uniform(
    const Spec& spec,
    at::ScalarType dtype,
    Draw draw,
    double from,
    double to);
at::Tensor sample_normal(
    const Spec& spec,
    at::ScalarType dtype,
    Draw draw,
    double mean,
    double std);
/// exp() of a normal.
at::Tensor sample_log_normal(
    const Spec& spec,
    at::ScalarType dtype,
    Draw draw,
    double mean,
    double std);
at::Tensor sample_exponential(
    const Spec& spec,
    at::ScalarType dtype,
    Draw draw,
    double lambda);
at::Tensor sample_cauchy(
    const Spec& spec,
    at::ScalarType dtype,
    Draw draw,
    double median,
    double sigma);
/// Returns the number of trials up to the first success: 1, 2, ...
at::Tensor
sample_geometric(const Spec& spec, at::ScalarType dtype, Draw draw, double p);
/// bool; true with probability p. Independent of the dtype.
at::Tensor sample_bernoulli(const Spec& spec, Draw draw, double p);
/// bool; `p` is a local tensor of shape spec.local_sizes().
at::Tensor sample_bernoulli(const Spec& spec, Draw draw, const at::Tensor& p);
/// int64, uniform in [from, from + range); range 0 stands for 2^64.
at::Tensor
sample_integers(const Spec& spec, Draw draw, int64_t from, uint64_t range);

// Distributions whose parameters are local tensors of shape spec.local_sizes().

/// Gamma of rate 1: 0 for shape 0, NaN below.
at::Tensor sample_gamma(
    const Spec& spec,
    at::ScalarType dtype,
    Draw draw,
    const at::Tensor& shape);
at::Tensor sample_poisson(
    const Spec& spec,
    at::ScalarType dtype,
    Draw draw,
    const at::Tensor& rate);
at::Tensor sample_binomial(
    const Spec& spec,
    at::ScalarType dtype,
    Draw draw,
    const at::Tensor& count,
    const at::Tensor& p);

} // namespace dtensor::detail

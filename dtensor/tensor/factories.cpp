// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/tensor/factories.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DefaultDtype.h>
#include <dtensor/comm/mesh_scope.h>
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/tensor/wrap_impl.h>

#include <algorithm>
#include <vector>

namespace dtensor {
namespace {

SpecPtr new_spec(
    SizesRef size,
    const DeviceMesh& given_mesh,
    PlacementsRef placements,
    at::ScalarType dtype,
    const char* where) {
  const auto mesh = detail::mesh_or_current(given_mesh, where);
  DTENSOR_CHECK_VALUE(
      std::ranges::all_of(size, [](auto n) { return n >= 0; }),
      "[{}] a size is negative: {}. Pass sizes of at least 0.",
      where,
      size);
  return Spec::make(
      mesh, placements_or_replicated(mesh, placements), size, dtype, where);
}

void refuse_partial(const Spec& spec, const char* where) {
  DTENSOR_CHECK_VALUE(
      !spec.has_partial(),
      "[{}] the values of a partial tensor are reduced over ranks: {}. Use "
      "Replicate in place of Partial.",
      where,
      to_string(spec.placements()));
}

at::ScalarType dtype_or_default(
    const FactoryOptions& options,
    bool is_complex = false) {
  return options.dtype.value_or(
      is_complex ? c10::get_default_complex_dtype().toScalarType()
                 : c10::get_default_dtype_as_scalartype());
}

at::TensorOptions local_options(const Spec& spec) {
  return at::TensorOptions()
      .dtype(spec.dtype())
      .device(spec.mesh().device_type());
}

at::Tensor
finish(at::Tensor local, const SpecPtr& spec, const FactoryOptions& options) {
  auto result = detail::wrap(std::move(local), spec);
  result.set_requires_grad(options.requires_grad);
  return result;
}

at::Tensor filled(
    SizesRef size,
    const at::Scalar& value,
    const DeviceMesh& mesh,
    PlacementsRef placements,
    const FactoryOptions& options,
    at::ScalarType dtype,
    const char* where) {
  const auto spec = new_spec(size, mesh, placements, dtype, where);
  refuse_partial(*spec, where);
  return finish(
      at::full(spec->local_sizes(), value, local_options(*spec)),
      spec,
      options);
}

// Returns the dtype of at::full without an explicit dtype.
at::ScalarType dtype_of(const at::Scalar& value) {
  if (value.isBoolean()) {
    return at::kBool;
  }
  if (value.isIntegral(/*includeBool=*/false)) {
    return at::kLong;
  }
  return dtype_or_default({}, value.isComplex());
}

at::ScalarType spaced_dtype(
    const at::Scalar& start,
    const at::Scalar& end,
    const FactoryOptions& options,
    const char* where) {
  const auto dtype =
      dtype_or_default(options, start.isComplex() || end.isComplex());
  DTENSOR_CHECK_TYPE(
      dtype != at::kBool,
      "[{}] the dtype is bool, which has no evenly spaced values. Use a "
      "numeric dtype.",
      where);
  return dtype;
}

// Returns the global indices of this rank's elements of a 1-D tensor.
at::Tensor local_indices(const Spec& spec) {
  const auto options =
      at::TensorOptions().dtype(at::kDouble).device(spec.mesh().device_type());
  std::vector<at::Tensor> runs = {at::empty({0}, options)};
  for (const Interval& run : local_intervals(spec, 0)) {
    runs.push_back(at::arange(run.begin, run.end, options));
  }
  return at::cat(runs);
}

// Returns this rank's values in f64 or c128. They count from both ends towards
// the middle, as in at::linspace.
at::Tensor spaced_values(
    const at::Scalar& start,
    const at::Scalar& end,
    const Spec& spec) {
  const auto steps = spec.sizes()[0];
  const bool is_complex = at::isComplexType(spec.dtype());
  const auto options = at::TensorOptions()
                           .dtype(is_complex ? at::kComplexDouble : at::kDouble)
                           .device(spec.mesh().device_type());
  const auto first = at::scalar_tensor(start, options);
  if (steps < 2) {
    return first.expand(spec.local_sizes());
  }
  const auto last = at::scalar_tensor(end, options);
  const auto step = last.sub(first).div(static_cast<double>(steps - 1));
  const auto indices = local_indices(spec);
  return at::where(
      indices.lt(steps / 2),
      indices.mul(step).add(first),
      indices.sub(static_cast<double>(steps - 1)).mul(step).add(last));
}

// Truncates an end point as at::linspace does for an integral result.
at::Scalar end_point(const at::Scalar& value, at::ScalarType dtype) {
  return at::isIntegralType(dtype, /*includeBool=*/false)
      ? at::Scalar(value.toLong())
      : value;
}

SpecPtr spaced_spec(
    const at::Scalar& start,
    const at::Scalar& end,
    int64_t steps,
    const DeviceMesh& mesh,
    PlacementsRef placements,
    const FactoryOptions& options,
    const char* where) {
  auto spec = new_spec(
      {steps},
      mesh,
      placements,
      spaced_dtype(start, end, options, where),
      where);
  refuse_partial(*spec, where);
  return spec;
}

at::Tensor finish_spaced(
    const at::Tensor& values,
    const SpecPtr& spec,
    const FactoryOptions& options) {
  return finish(values.to(spec->dtype()).contiguous(), spec, options);
}

} // namespace

at::Tensor zeros(
    SizesRef size,
    const DeviceMesh& mesh,
    PlacementsRef placements,
    const FactoryOptions& options) {
  const auto spec =
      new_spec(size, mesh, placements, dtype_or_default(options), "zeros");
  return finish(
      at::zeros(spec->local_sizes(), local_options(*spec)), spec, options);
}

at::Tensor empty(
    SizesRef size,
    const DeviceMesh& mesh,
    PlacementsRef placements,
    const FactoryOptions& options) {
  const auto spec =
      new_spec(size, mesh, placements, dtype_or_default(options), "empty");
  return finish(
      at::empty(spec->local_sizes(), local_options(*spec)), spec, options);
}

at::Tensor ones(
    SizesRef size,
    const DeviceMesh& mesh,
    PlacementsRef placements,
    const FactoryOptions& options) {
  return filled(
      size, 1, mesh, placements, options, dtype_or_default(options), "ones");
}

at::Tensor full(
    SizesRef size,
    const at::Scalar& value,
    const DeviceMesh& mesh,
    PlacementsRef placements,
    const FactoryOptions& options) {
  return filled(
      size,
      value,
      mesh,
      placements,
      options,
      options.dtype.value_or(dtype_of(value)),
      "full");
}

at::Tensor linspace(
    const at::Scalar& start,
    const at::Scalar& end,
    int64_t steps,
    const DeviceMesh& mesh,
    PlacementsRef placements,
    const FactoryOptions& options) {
  const auto spec =
      spaced_spec(start, end, steps, mesh, placements, options, "linspace");
  const auto dtype = spec->dtype();
  return finish_spaced(
      spaced_values(end_point(start, dtype), end_point(end, dtype), *spec),
      spec,
      options);
}

// at::logspace truncates the exponents of an integral result, except for a
// single value.
at::Tensor logspace(
    const at::Scalar& start,
    const at::Scalar& end,
    int64_t steps,
    double base,
    const DeviceMesh& mesh,
    PlacementsRef placements,
    const FactoryOptions& options) {
  const auto spec =
      spaced_spec(start, end, steps, mesh, placements, options, "logspace");
  const auto truncated = [&](const at::Scalar& value) {
    return steps == 1 ? value : end_point(value, spec->dtype());
  };
  const auto exponents = spaced_values(truncated(start), truncated(end), *spec);
  return finish_spaced(at::pow(base, exponents), spec, options);
}

} // namespace dtensor

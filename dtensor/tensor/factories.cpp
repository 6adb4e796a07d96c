// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/tensor/factories.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DefaultDtype.h>
#include <dtensor/comm/mesh_scope.h>
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/tensor/wrap_impl.h>

#include <algorithm>

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
      std::all_of(size.begin(), size.end(), [](auto n) { return n >= 0; }),
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

at::ScalarType dtype_or_default(const FactoryOptions& options) {
  return options.dtype.value_or(c10::get_default_dtype_as_scalartype());
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
  return value.isComplex() ? c10::get_default_complex_dtype().toScalarType()
                           : c10::get_default_dtype_as_scalartype();
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

} // namespace dtensor

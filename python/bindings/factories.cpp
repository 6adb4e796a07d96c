// SPDX-License-Identifier: BSD-3-Clause
// Factories of DTensors, and the seed of their random numbers.
#include "parts.h"

#include "convert.h"
#include "without_gil.h"

#include <ATen/CPUGeneratorImpl.h>
#include <dtensor/random/random.h>
#include <dtensor/tensor/factories.h>
#include <pybind11/complex.h>
#include <torch/csrc/utils/pybind.h>

namespace dtensor::python {
namespace {

using Factory = at::Tensor (*)(
    SizesRef,
    const DeviceMesh&,
    PlacementsRef,
    const FactoryOptions&);

void bind_factory(py::module_& module, const char* name, Factory factory) {
  module.def(
      name,
      [factory](
          const std::vector<int64_t>& size,
          py::handle device_mesh,
          py::handle placements,
          std::optional<at::ScalarType> dtype,
          bool requires_grad) {
        const DeviceMesh& mesh = to_mesh(device_mesh);
        const auto layout = to_placements(placements);
        return without_gil([&] {
          return factory(size, mesh, layout, {dtype, requires_grad});
        });
      });
}

at::Scalar to_scalar(py::handle value) {
  if (PyBool_Check(value.ptr())) {
    return value.cast<bool>();
  }
  if (PyLong_Check(value.ptr())) {
    return value.cast<int64_t>();
  }
  if (PyComplex_Check(value.ptr())) {
    return c10::complex<double>(value.cast<std::complex<double>>());
  }
  return value.cast<double>();
}

at::Tensor make_full(
    const std::vector<int64_t>& size,
    py::handle fill_value,
    py::handle device_mesh,
    py::handle placements,
    std::optional<at::ScalarType> dtype,
    bool requires_grad) {
  const DeviceMesh& mesh = to_mesh(device_mesh);
  const auto layout = to_placements(placements);
  const at::Scalar value = to_scalar(fill_value);
  return without_gil([&] {
    return full(size, value, mesh, layout, {dtype, requires_grad});
  });
}

} // namespace

void bind_factories(py::module_& module) {
  bind_factory(module, "zeros", &zeros);
  bind_factory(module, "ones", &ones);
  bind_factory(module, "empty", &empty);
  bind_factory(module, "rand", &rand);
  bind_factory(module, "randn", &randn);
  module.def("full", &make_full);
  module.def(
      "default_generator", [] { return at::detail::getDefaultCPUGenerator(); });
  module.def("get_random_state", &get_random_state);
  module.def("set_random_state", &set_random_state);
  module.def("manual_seed", [](uint64_t seed) { manual_seed(seed); });
}

} // namespace dtensor::python

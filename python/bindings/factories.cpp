// SPDX-License-Identifier: BSD-3-Clause
// Factories of DTensors, and the seed of their random numbers.
#include "parts.h"

#include "arguments.h"
#include "convert.h"
#include "without_gil.h"

#include <ATen/CPUGeneratorImpl.h>
#include <dtensor/random/random.h>
#include <dtensor/tensor/factories.h>
#include <pybind11/complex.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <vector>

namespace dtensor::python {
namespace {

using Factory = at::Tensor (*)(
    SizesRef,
    const DeviceMesh&,
    PlacementsRef,
    const FactoryOptions&);

/// Converts the arguments that all factories have, before the mesh and the
/// placements. Their errors are then those of every function.
struct FactoryArguments {
  FactoryArguments(
      const char* function,
      py::handle given_size,
      py::handle dtype,
      py::handle requires_grad)
      : size(cast_argument<std::vector<int64_t>>(
            function,
            "size",
            kIntegers,
            given_size)),
        options{
            cast_argument<std::optional<at::ScalarType>>(
                function,
                "dtype",
                kDtype,
                dtype),
            cast_argument<bool>(
                function,
                "requires_grad",
                kBool,
                requires_grad)} {}

  std::vector<int64_t> size;
  FactoryOptions options;
};

void bind_factory(py::module_& module, const char* name, Factory factory) {
  module.def(
      name,
      [name, factory](
          py::handle size,
          py::handle device_mesh,
          py::handle placements,
          py::handle dtype,
          py::handle requires_grad) {
        const FactoryArguments given(name, size, dtype, requires_grad);
        const DeviceMesh& mesh = to_mesh(device_mesh);
        const auto layout = to_placements(placements);
        return without_gil(
            [&] { return factory(given.size, mesh, layout, given.options); });
      });
}

/// Returns the Python number of a NumPy integer or of a tensor without
/// dimensions, and all other values unchanged.
py::object to_number(py::handle value) {
  if (THPVariable_Check(value.ptr())) {
    const bool is_number = THPVariable_Unpack(value.ptr()).dim() == 0;
    return is_number ? value.attr("item")()
                     : py::reinterpret_borrow<py::object>(value);
  }
  if (PyIndex_Check(value.ptr()) && !PyLong_Check(value.ptr())) {
    if (PyObject* const integer = PyNumber_Index(value.ptr())) {
      return py::reinterpret_steal<py::object>(integer);
    }
    PyErr_Clear();
  }
  return py::reinterpret_borrow<py::object>(value);
}

at::Scalar to_scalar(py::handle value) {
  if (PyBool_Check(value.ptr())) {
    return value.cast<bool>();
  }
  if (PyLong_Check(value.ptr())) {
    return cast_argument<int64_t>("full", "fill_value", kNumber, value);
  }
  if (PyComplex_Check(value.ptr())) {
    return c10::complex<double>(value.cast<std::complex<double>>());
  }
  return cast_argument<double>("full", "fill_value", kNumber, value);
}

at::Tensor make_full(
    py::handle size,
    py::handle fill_value,
    py::handle device_mesh,
    py::handle placements,
    py::handle dtype,
    py::handle requires_grad) {
  const FactoryArguments given("full", size, dtype, requires_grad);
  const at::Scalar value = to_scalar(to_number(fill_value));
  const DeviceMesh& mesh = to_mesh(device_mesh);
  const auto layout = to_placements(placements);
  return without_gil(
      [&] { return full(given.size, value, mesh, layout, given.options); });
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

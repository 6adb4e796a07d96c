// SPDX-License-Identifier: BSD-3-Clause
// The Python module dtensor._C: this library under torch.distributed.tensor's
// names. dtensor/*.py has the classes and functions of the public API.
#include "parts.h"

PYBIND11_MODULE(_C, module) {
  module.doc() = "The C++ library under the Python package dtensor.";
  dtensor::python::bind_names(module);
  dtensor::python::bind_arguments(module);
  dtensor::python::bind_worlds(module);
  dtensor::python::bind_tensors(module);
  dtensor::python::bind_methods(module);
  dtensor::python::bind_attributes(module);
  dtensor::python::bind_indexing(module);
  dtensor::python::bind_factories(module);
  dtensor::python::bind_scopes(module);
  dtensor::python::bind_styles(module);
  dtensor::python::bind_sharding_rules(module);
}

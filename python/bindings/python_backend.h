// SPDX-License-Identifier: BSD-3-Clause
// A c10d backend whose collectives are methods of a Python object.
#pragma once

#include <pybind11/pybind11.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace dtensor::python {

/// Makes a backend of a PythonGroup (dtensor/python_groups.py). Its
/// collectives, and the waits for them, take the GIL. `name` names it in
/// messages.
c10::intrusive_ptr<c10d::Backend>
python_backend(pybind11::object group, int rank, int size, std::string name);

} // namespace dtensor::python

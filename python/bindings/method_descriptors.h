// SPDX-License-Identifier: BSD-3-Clause
// Methods that only some objects of a class have. A call x.f() finds the
// descriptor without making a bound method first, as for methods of the class.
#pragma once

#include "calls.h"

namespace dtensor::python {

/// Throws AttributeError if an object does not have the method.
using CheckOwner = void (*)(PyObject* self, const char* name);

/// Returns a descriptor for a class attribute. `method`, a FastFunction that
/// checks its first argument itself, lives as long as the process.
py::object method_descriptor(PyMethodDef& method, CheckOwner check);

} // namespace dtensor::python

// SPDX-License-Identifier: BSD-3-Clause
#include "arguments.h"

#include "parts.h"

#include <string>

namespace dtensor::python {
namespace {

/// Returns the type's name, and the value if its text is one short line.
std::string describe(py::handle given) {
  if (given.is_none()) {
    return "None";
  }
  constexpr size_t kMaxLength = 60;
  const auto type =
      py::type::handle_of(given).attr("__name__").cast<std::string>();
  const auto text = py::repr(given).cast<std::string>();
  const bool is_short =
      text.size() <= kMaxLength && text.find('\n') == std::string::npos;
  return is_short ? type + " " + text : type;
}

/// Returns the TypeError of an argument that Python code checks.
py::object argument_error(
    const std::string& function,
    const std::string& name,
    const std::string& expected,
    py::handle given,
    const std::string& advice) {
  const std::string text = "[" + function + "] expected " + expected + " as " +
      name + ", got " + describe(given) + ". " + advice;
  return py::handle(PyExc_TypeError)(text);
}

} // namespace

void refuse_argument(
    const char* function,
    const char* name,
    const Expected& expected,
    py::handle given) {
  const py::object error =
      argument_error(function, name, expected.what, given, expected.advice);
  PyErr_SetObject(PyExc_TypeError, error.ptr());
  throw py::error_already_set();
}

void bind_arguments(py::module_& module) {
  module.def("argument_error", &argument_error);
}

} // namespace dtensor::python

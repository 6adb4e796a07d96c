// SPDX-License-Identifier: BSD-3-Clause
// Functions of Python's C API, for calls that programs make often: pybind11's
// dispatch would take most of their time.
#pragma once

#include "convert.h"

#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>

namespace dtensor::python {

/// A function that Python calls with METH_FASTCALL | METH_KEYWORDS.
using FastFunction =
    PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*);

/// Returns the entry of a method table.
inline PyMethodDef
fast_method(const char* name, FastFunction function, const char* doc) {
  return {
      name,
      reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)),
      METH_FASTCALL | METH_KEYWORDS,
      doc};
}

/// Adds a function, which lives as long as the process.
inline void add_function(py::module_& module, PyMethodDef& function) {
  module.attr(function.ml_name) =
      py::reinterpret_steal<py::object>(PyCFunction_New(&function, nullptr));
}

/// Names of a function's parameters, interned.
template <size_t N>
struct Signature {
  Signature(
      const char* name,
      size_t max_positional,
      const std::array<const char*, N>& parameters)
      : function(name),
        positional(max_positional) {
    for (size_t i = 0; i < N; ++i) {
      names[i] = PyUnicode_InternFromString(parameters[i]); // never released
    }
  }

  const char* function;
  size_t positional;
  std::array<PyObject*, N> names;
};

/// The arguments of a call in the order of the signature; None for omitted
/// arguments. Throws TypeError for arguments that the signature does not have.
template <size_t N>
class Arguments {
 public:
  Arguments(
      const Signature<N>& signature,
      PyObject* const* given,
      Py_ssize_t count,
      PyObject* keywords) {
    values_.fill(Py_None);
    const auto positional = static_cast<size_t>(count);
    if (positional > signature.positional) {
      refuse(signature, "too many positional arguments");
    }
    std::copy_n(given, positional, values_.begin());
    const Py_ssize_t named = keywords ? PyTuple_GET_SIZE(keywords) : 0;
    for (Py_ssize_t i = 0; i < named; ++i) {
      set(signature,
          positional,
          PyTuple_GET_ITEM(keywords, i),
          given[count + i]);
    }
  }
  py::handle operator[](size_t i) const {
    return values_[i];
  }

 private:
  void set(
      const Signature<N>& signature,
      size_t positional,
      PyObject* name,
      PyObject* value) {
    const auto& names = signature.names;
    auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) { // the caller's name may not be interned
      found = std::find_if(names.begin(), names.end(), [&](PyObject* known) {
        return PyUnicode_Compare(known, name) == 0;
      });
    }
    const auto i = static_cast<size_t>(found - names.begin());
    if (i == N || i < positional) {
      refuse(
          signature,
          (i == N ? "an unexpected keyword argument '"
                  : "two values for argument '") +
              py::str(name).cast<std::string>() + "'");
    }
    values_[i] = value;
  }
  [[noreturn]] static void refuse(
      const Signature<N>& signature,
      const std::string& what) {
    throw py::type_error(
        std::string(signature.function) + "() got " + what + ".");
  }

  std::array<PyObject*, N> values_;
};

/// Calls `f`, which returns a new reference, and turns its exceptions into
/// Python's.
template <class F>
PyObject* guarded(F&& f) noexcept {
  try {
    return f();
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const py::builtin_exception& error) {
    error.set_error();
  } catch (...) {
    torch::translate_exception_to_python(std::current_exception());
  }
  return nullptr;
}

} // namespace dtensor::python

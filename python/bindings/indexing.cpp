// SPDX-License-Identifier: BSD-3-Clause
// x[key] and x[key] = value of DTensors whose key has lists, arrays or ranges.
// torch.Tensor makes a plain tensor of each of these, which no operator accepts
// beside a DTensor. dtensor/indexing.py therefore makes DTensors of them first.
#include "parts.h"

#include "calls.h"
#include "convert.h"

#include <c10/core/DispatchKeySet.h>
#include <dtensor/tensor/dtensor.h>
#include <torch/csrc/autograd/python_variable.h>

namespace dtensor::python {
namespace {

/// Functions that torch.Tensor inherits.
PyMappingMethods* inherited = nullptr;
/// distributed_key(tensor, key) -> key
PyObject* distributed_key = nullptr;

/// Returns true for a DTensor, and for torch.func's wrappers of a DTensor or of
/// a plain tensor.
bool may_be_distributed(PyObject* self) {
  constexpr c10::DispatchKeySet wrappers(
      {c10::DispatchKey::FuncTorchBatched,
       c10::DispatchKey::FuncTorchGradWrapper});
  if (!THPVariable_Check(self)) {
    return false;
  }
  const at::Tensor& tensor = THPVariable_Unpack(self);
  return is_dtensor(tensor) || tensor.key_set().has_any(wrappers);
}

bool is_sequence(PyObject* key) {
  return !PyLong_Check(key) && !PySlice_Check(key) && key != Py_None &&
      key != Py_Ellipsis && !THPVariable_Check(key);
}

bool has_sequence(PyObject* key) {
  if (!PyTuple_Check(key)) {
    return is_sequence(key);
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(key); ++i) {
    if (is_sequence(PyTuple_GET_ITEM(key, i))) {
      return true;
    }
  }
  return false;
}

/// Returns the key for torch.Tensor's own function. Throws Python's errors.
py::object key_for(PyObject* self, PyObject* key) {
  if (!may_be_distributed(self) || !has_sequence(key)) {
    return py::reinterpret_borrow<py::object>(key);
  }
  return py::handle(distributed_key)(py::handle(self), py::handle(key));
}

void check_count(const char* function, Py_ssize_t count, Py_ssize_t expected) {
  if (count != expected) {
    throw py::type_error(
        std::string(function) + "() takes " + std::to_string(expected) +
        " arguments, got " + std::to_string(count) + ".");
  }
}

PyObject* get_item(PyObject* self, PyObject* const* given, Py_ssize_t count) {
  return guarded([&] {
    check_count("__getitem__", count, 1);
    const py::object key = key_for(self, given[0]);
    return inherited->mp_subscript(self, key.ptr());
  });
}

PyObject* set_item(PyObject* self, PyObject* const* given, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    check_count("__setitem__", count, 2);
    const py::object key = key_for(self, given[0]);
    const int failed = inherited->mp_ass_subscript(self, key.ptr(), given[1]);
    return failed != 0 ? nullptr : Py_NewRef(Py_None);
  });
}

PyMethodDef method(
    const char* name,
    PyObject* (*function)(PyObject*, PyObject* const*, Py_ssize_t),
    const char* doc) {
  return {
      name,
      reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)),
      METH_FASTCALL,
      doc};
}

PyMethodDef index_methods[] = {
    method("__getitem__", &get_item, "Return self[key]."),
    method("__setitem__", &set_item, "Set self[key] to value.")};

/// Installs the functions in the class torch.Tensor. They live as long as the
/// process.
void add_indexing(py::handle tensor_class, const py::object& convert_key) {
  auto* const type = reinterpret_cast<PyTypeObject*>(tensor_class.ptr());
  inherited = type->tp_base->tp_as_mapping;
  distributed_key = convert_key.inc_ref().ptr();
  for (PyMethodDef& method : index_methods) {
    const auto descriptor =
        py::reinterpret_steal<py::object>(PyDescr_NewMethod(type, &method));
    py::setattr(tensor_class, method.ml_name, descriptor);
  }
}

} // namespace

void bind_indexing(py::module_& module) {
  module.def("add_indexing", &add_indexing);
}

} // namespace dtensor::python

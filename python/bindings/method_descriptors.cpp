// SPDX-License-Identifier: BSD-3-Clause
#include "method_descriptors.h"

#include <structmember.h>

#include <cstddef>

namespace dtensor::python {
namespace {

struct Descriptor {
  PyObject_HEAD vectorcallfunc call;
  PyMethodDef* method;
  CheckOwner check;
};

const Descriptor& as_descriptor(PyObject* object) {
  return *reinterpret_cast<Descriptor*>(object);
}

PyObject* call_descriptor(
    PyObject* object,
    PyObject* const* arguments,
    size_t flagged_count,
    PyObject* keywords) {
  const auto& method = *as_descriptor(object).method;
  const Py_ssize_t count = PyVectorcall_NARGS(flagged_count);
  if (count == 0) {
    return PyErr_Format(
        PyExc_TypeError, "%s() needs a DTensor.", method.ml_name);
  }
  const auto function = reinterpret_cast<FastFunction>(
      reinterpret_cast<void (*)()>(method.ml_meth));
  return function(arguments[0], arguments + 1, count - 1, keywords);
}

/// Returns the bound method, or the descriptor itself for access by the class.
PyObject* get_descriptor(PyObject* object, PyObject* self, PyObject*) {
  if (self == nullptr || self == Py_None) {
    return Py_NewRef(object);
  }
  return guarded([&] {
    const auto& descriptor = as_descriptor(object);
    descriptor.check(self, descriptor.method->ml_name);
    return PyCFunction_New(descriptor.method, self);
  });
}

PyObject* get_name(PyObject* object, void*) {
  return PyUnicode_FromString(as_descriptor(object).method->ml_name);
}

/// Returns the text after the signature, which ends with "--" and a blank line.
PyObject* get_doc(PyObject* object, void*) {
  const std::string text = as_descriptor(object).method->ml_doc;
  const std::string end = ")\n--\n\n";
  const size_t found = text.find(end);
  return PyUnicode_FromString(
      text.c_str() + (found == std::string::npos ? 0 : found + end.size()));
}

PyTypeObject* make_type() {
  static PyMemberDef members[] = {
      {"__vectorcalloffset__",
       T_PYSSIZET,
       offsetof(Descriptor, call),
       READONLY,
       nullptr},
      {nullptr, 0, 0, 0, nullptr}};
  static PyGetSetDef attributes[] = {
      {"__name__", &get_name, nullptr, nullptr, nullptr},
      {"__doc__", &get_doc, nullptr, nullptr, nullptr},
      {nullptr, nullptr, nullptr, nullptr, nullptr}};
  PyType_Slot slots[] = {
      {Py_tp_call, reinterpret_cast<void*>(&PyVectorcall_Call)},
      {Py_tp_descr_get, reinterpret_cast<void*>(&get_descriptor)},
      {Py_tp_members, members},
      {Py_tp_getset, attributes},
      {0, nullptr}};
  PyType_Spec spec = {
      "dtensor._C.method_descriptor",
      sizeof(Descriptor),
      0,
      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_METHOD_DESCRIPTOR |
          Py_TPFLAGS_HAVE_VECTORCALL,
      slots};
  auto* const type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  if (type == nullptr) {
    throw py::error_already_set();
  }
  return type;
}

} // namespace

py::object method_descriptor(PyMethodDef& method, CheckOwner check) {
  static PyTypeObject* const type = make_type(); // lives as long as the process
  PyObject* const object = type->tp_alloc(type, 0);
  if (object == nullptr) {
    throw py::error_already_set();
  }
  auto* const descriptor = reinterpret_cast<Descriptor*>(object);
  descriptor->call = &call_descriptor;
  descriptor->method = &method;
  descriptor->check = check;
  return py::reinterpret_steal<py::object>(object);
}

} // namespace dtensor::python

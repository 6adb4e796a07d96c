// SPDX-License-Identifier: BSD-3-Clause
// x[key] and x[key] = value of DTensors whose key has lists, arrays or ranges.
// torch.Tensor makes a plain tensor of each of these, which no operator accepts
// beside a DTensor. dtensor/indexing.py therefore makes DTensors of them first.
#include "parts.h"

#include "calls.h"
#include "convert.h"
#include "distributed.h"

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
  if (!THPVariable_Check(self)) {
    return false;
  }
  const at::Tensor& tensor = THPVariable_Unpack(self);
  return is_dtensor(tensor) || is_transformed(tensor);
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

PyObject* get_item(PyObject* self, PyObject* given) {
  return guarded([&] {
    const py::object key = key_for(self, given);
    return inherited->mp_subscript(self, key.ptr());
  });
}

/// Deletes the item if `value` is null, which PyTorch refuses.
int set_item(PyObject* self, PyObject* given, PyObject* value) {
  const auto done =
      py::reinterpret_steal<py::object>(guarded([&]() -> PyObject* {
        const py::object key = key_for(self, given);
        const int failed = inherited->mp_ass_subscript(self, key.ptr(), value);
        return failed != 0 ? nullptr : Py_NewRef(Py_None);
      }));
  return done ? 0 : -1;
}

/// Puts `function` in the place of the class's own method `name`. The new
/// method belongs to the same slot of the type. A function of another kind
/// would also fill the slot of sequences, and torch.tensor([x[0], x[1]]) would
/// take the length of tensors without dimensions.
template <class Function>
void replace_method(PyTypeObject* type, const char* name, Function function) {
  const py::object own =
      py::getattr(reinterpret_cast<PyObject*>(type->tp_base), name);
  TORCH_INTERNAL_ASSERT(Py_IS_TYPE(own.ptr(), &PyWrapperDescr_Type), name);
  const auto replacement = py::reinterpret_steal<py::object>(PyDescr_NewWrapper(
      type,
      reinterpret_cast<PyWrapperDescrObject*>(own.ptr())->d_base,
      reinterpret_cast<void*>(function)));
  py::setattr(reinterpret_cast<PyObject*>(type), name, replacement);
}

/// Installs the functions in the class torch.Tensor. They live as long as the
/// process.
void add_indexing(py::handle tensor_class, const py::object& convert_key) {
  auto* const type = reinterpret_cast<PyTypeObject*>(tensor_class.ptr());
  inherited = type->tp_base->tp_as_mapping;
  distributed_key = convert_key.inc_ref().ptr();
  replace_method(type, "__getitem__", &get_item);
  replace_method(type, "__setitem__", &set_item);
  replace_method(type, "__delitem__", &set_item);
}

} // namespace

void bind_indexing(py::module_& module) {
  module.def("add_indexing", &add_indexing);
}

} // namespace dtensor::python

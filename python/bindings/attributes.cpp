// SPDX-License-Identifier: BSD-3-Clause
// Attributes of distributed tensors, as descriptors of torch.Tensor. A plain
// tensor may have attributes of these names in its __dict__, and otherwise
// raises AttributeError.
#include "parts.h"

#include "calls.h"
#include "convert.h"
#include "distributed.h"

#include <dtensor/error.h>
#include <torch/csrc/utils/pybind.h>

#include <array>

namespace dtensor::python {
namespace {

/// An attribute of DTensors. `set` is null for an attribute that cannot be
/// assigned; its value is null to delete the attribute.
struct Attribute {
  const char* name;
  py::object (*get)(PyObject* self, const DTensor& tensor);
  void (*set)(PyObject* self, const DTensor& tensor, PyObject* value);
  const char* doc;
};

py::object get_placements(PyObject*, const DTensor& tensor) {
  return to_python(tensor.placements());
}

py::object get_device_mesh(PyObject*, const DTensor& tensor) {
  return to_python(tensor.device_mesh());
}

py::object get_spec(PyObject*, const DTensor& tensor) {
  return to_python(tensor.spec());
}

// --- _local_tensor -----------------------------------------------------------

/// Returns the local tensor without a gradient.
at::Tensor detached_local(const DTensor& tensor) {
  const at::NoGradGuard no_grad;
  return local_of(tensor);
}

bool are_same_view(const at::Tensor& a, const at::Tensor& b) {
  return a.is_alias_of(b) && a.storage_offset() == b.storage_offset() &&
      a.sizes() == b.sizes() && a.strides() == b.strides() &&
      a.dtype() == b.dtype() && a.requires_grad() == b.requires_grad();
}

py::dict dict_of(PyObject* self) {
  return py::reinterpret_steal<py::dict>(
      PyObject_GenericGetDict(self, nullptr));
}

/// Returns the object that the last access returned, if the program still holds
/// this object and it still is the local tensor.
py::object get_local_tensor(PyObject* self, const DTensor& tensor) {
  static auto* const name = new py::object(interned("_dt_local"));
  const at::Tensor local = detached_local(tensor);
  const py::dict attributes = dict_of(self);
  PyObject* const reference = PyDict_GetItem(attributes.ptr(), name->ptr());
  if (reference != nullptr) {
    py::object last = py::reinterpret_borrow<py::object>(reference)();
    if (THPVariable_Check(last.ptr()) &&
        are_same_view(THPVariable_Unpack(last.ptr()), local)) {
      return last;
    }
  }
  py::object made = py::cast(local);
  attributes[*name] = py::weakref(made);
  return made;
}

const at::Tensor& new_local(PyObject* value, const at::Tensor& local) {
  if (value == nullptr || !THPVariable_Check(value)) {
    throw py::type_error(
        "[_local_tensor] expected a torch.Tensor. Assign the local tensor of "
        "this rank.");
  }
  const at::Tensor& given = THPVariable_Unpack(value);
  DTENSOR_CHECK_VALUE(
      !is_dtensor(given),
      "[_local_tensor] expected a plain tensor, got a DTensor. Assign its "
      "to_local().");
  DTENSOR_CHECK_VALUE(
      given.sizes() == local.sizes() && given.dtype() == local.dtype(),
      "[_local_tensor] expected a {} tensor of sizes {}, got a {} tensor of "
      "sizes {}. Assign a tensor like the local tensor, or call from_local().",
      c10::toString(local.scalar_type()),
      local.sizes(),
      c10::toString(given.scalar_type()),
      given.sizes());
  return given;
}

/// Sets the local tensor. `x._local_tensor += y` of PyTorch's fully_shard
/// assigns the existing local tensor again.
void set_local_tensor(PyObject* self, const DTensor& tensor, PyObject* value) {
  const at::NoGradGuard no_grad;
  const at::Tensor local = local_of(tensor);
  const at::Tensor& given = new_local(value, local);
  if (!are_same_view(given.detach(), local.detach())) {
    const at::Tensor other = DTensor(given.detach(), tensor.spec(), false);
    THPVariable_Unpack(self).set_data(other);
  }
}

// --- descriptors -------------------------------------------------------------

constexpr std::array<Attribute, 4> kAttributes = {{
    {"placements", &get_placements, nullptr, "Layout of a DTensor."},
    {"device_mesh", &get_device_mesh, nullptr, "Mesh of a DTensor."},
    {"_spec", &get_spec, nullptr, nullptr},
    {"_local_tensor", &get_local_tensor, &set_local_tensor, nullptr},
}};

PyObject* get_attribute(PyObject* self, void* closure) {
  const auto& attribute = *static_cast<const Attribute*>(closure);
  return guarded([&] {
    if (const at::Tensor* const tensor = as_dtensor(self)) {
      return attribute.get(self, DTensor(*tensor)).release().ptr();
    }
    PyObject* const stored =
        PyDict_GetItemString(dict_of(self).ptr(), attribute.name);
    if (stored == nullptr) {
      refuse_attribute(attribute.name);
    }
    return Py_NewRef(stored);
  });
}

/// Sets or deletes the attribute of this name in a plain tensor's __dict__.
void store(PyObject* self, const char* name, PyObject* value) {
  const py::dict attributes = dict_of(self);
  if (value != nullptr) {
    attributes[name] = py::handle(value);
  } else if (attributes.contains(name)) {
    PyDict_DelItemString(attributes.ptr(), name);
  } else {
    refuse_attribute(name);
  }
}

int set_attribute(PyObject* self, PyObject* value, void* closure) {
  const auto& attribute = *static_cast<const Attribute*>(closure);
  PyObject* const done = guarded([&] {
    const at::Tensor* const tensor = as_dtensor(self);
    if (tensor == nullptr) {
      store(self, attribute.name, value);
    } else if (attribute.set == nullptr) {
      throw py::attribute_error(
          std::string("[") + attribute.name +
          "] a DTensor's attribute cannot be set. Call redistribute() to make "
          "a DTensor of another layout.");
    } else {
      attribute.set(self, DTensor(*tensor), value);
    }
    return Py_NewRef(Py_None);
  });
  Py_XDECREF(done);
  return done == nullptr ? -1 : 0;
}

/// Installs the attributes in the class torch.Tensor.
void add_attributes(py::handle tensor_class) {
  static std::array<PyGetSetDef, kAttributes.size()> definitions{};
  auto* const tensor_type = reinterpret_cast<PyTypeObject*>(tensor_class.ptr());
  for (size_t i = 0; i < kAttributes.size(); ++i) {
    const Attribute& attribute = kAttributes[i];
    definitions[i] = {
        attribute.name,
        &get_attribute,
        &set_attribute,
        attribute.doc,
        const_cast<Attribute*>(&attribute)};
    const auto descriptor = py::reinterpret_steal<py::object>(
        PyDescr_NewGetSet(tensor_type, &definitions[i]));
    py::setattr(tensor_class, attribute.name, descriptor);
  }
}

} // namespace

void bind_attributes(py::module_& module) {
  module.def("add_attributes", &add_attributes);
}

} // namespace dtensor::python

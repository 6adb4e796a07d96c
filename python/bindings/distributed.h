// SPDX-License-Identifier: BSD-3-Clause
// Access to the DTensor that a Python object is.
#pragma once

#include "without_gil.h"

#include <c10/core/DispatchKeySet.h>
#include <dtensor/tensor/dtensor.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/autograd/python_variable.h>

#include <optional>
#include <string>

namespace dtensor::python {

namespace py = pybind11;

/// Returns the DTensor of an object; null for all other objects.
inline const at::Tensor* as_dtensor(PyObject* self) {
  if (!THPVariable_Check(self)) {
    return nullptr;
  }
  const at::Tensor& tensor = THPVariable_Unpack(self);
  return is_dtensor(tensor) ? &tensor : nullptr;
}

/// Returns true for a tensor that wraps another one for a transform of
/// torch.func. It has no layout, even if the wrapped tensor is a DTensor.
inline bool is_transformed(const at::Tensor& tensor) {
  using c10::DispatchKey;
  constexpr c10::DispatchKeySet wrappers(
      {DispatchKey::FuncTorchBatched, DispatchKey::FuncTorchGradWrapper});
  return tensor.key_set().has_any(wrappers);
}

/// Throws the AttributeError of a tensor without the attribute `name`.
[[noreturn]] inline void refuse_attribute(const char* name) {
  throw py::attribute_error(
      std::string("'Tensor' object has no attribute '") + name + "'");
}

/// Returns the DTensor of an object. Throws AttributeError for other objects,
/// which have no attribute `name`.
inline const at::Tensor& distributed(PyObject* self, const char* name) {
  const at::Tensor* const tensor = as_dtensor(self);
  if (tensor == nullptr) {
    refuse_attribute(name);
  }
  return *tensor;
}

/// Returns the local tensor. Only to wait for an asynchronous redistribution,
/// releases the GIL and turns LibTorch's warnings into Python's. Otherwise no
/// operator runs, so no wait and no warning is possible.
inline at::Tensor local_of(
    const DTensor& tensor,
    const std::optional<Placements>& grad_placements = std::nullopt) {
  const auto get = [&] { return tensor.to_local(grad_placements); };
  return is_pending(tensor) ? without_gil(get) : get();
}

} // namespace dtensor::python

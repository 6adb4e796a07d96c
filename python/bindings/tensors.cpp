// SPDX-License-Identifier: BSD-3-Clause
// Functions of DTensor. A distributed tensor is a torch.Tensor in Python, too.
#include "parts.h"

#include "convert.h"
#include "without_gil.h"

#include <dtensor/layout/text.h>
#include <dtensor/tensor/dtensor.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

namespace dtensor::python {
namespace {

using OptionalSizes = std::optional<std::vector<int64_t>>;
using OptionalDtype = std::optional<at::ScalarType>;

/// Returns the DTensor, or throws AttributeError, since plain tensors do not
/// have the attribute `name`.
DTensor distributed(py::handle self, const char* name) {
  if (THPVariable_Check(self.ptr())) {
    const at::Tensor& tensor = THPVariable_Unpack(self.ptr());
    if (is_dtensor(tensor)) {
      return {tensor};
    }
  }
  throw py::attribute_error(
      std::string("'Tensor' object has no attribute '") + name + "'");
}

/// isinstance(x, DTensor), without the cost of pybind11's dispatch.
PyObject* is_dtensor_object(PyObject*, PyObject* x) {
  return PyBool_FromLong(
      THPVariable_Check(x) && is_dtensor(THPVariable_Unpack(x)));
}
PyMethodDef is_dtensor_method = {
    "is_dtensor",
    is_dtensor_object,
    METH_O,
    "Returns whether the object is a distributed tensor."};

at::Tensor from_local(
    const at::Tensor& local,
    py::handle device_mesh,
    py::handle placements,
    bool run_check,
    OptionalSizes shape,
    OptionalSizes stride,
    py::handle grad_placements) {
  const DeviceMesh& mesh = to_mesh(device_mesh);
  const auto layout = to_placements(placements);
  const FromLocalOptions options = {
      .run_check = run_check,
      .shape = std::move(shape),
      .stride = std::move(stride),
      .grad_placements = to_optional_placements(grad_placements)};
  return without_gil(
      [&] { return DTensor::from_local(local, mesh, layout, options); });
}

at::Tensor from_spec(
    const at::Tensor& local,
    py::handle device_mesh,
    py::handle placements,
    const std::vector<int64_t>& shape,
    const std::vector<int64_t>& stride,
    OptionalDtype dtype,
    bool requires_grad) {
  const DeviceMesh& mesh = to_mesh(device_mesh);
  const auto layout = to_placements(placements);
  return without_gil([&]() -> at::Tensor {
    const auto spec = Spec::make(
        mesh,
        layout,
        shape,
        stride,
        dtype.value_or(local.scalar_type()),
        "DTensor");
    return DTensor(local, spec, requires_grad);
  });
}

at::Tensor to_local(py::handle self, py::handle grad_placements) {
  const DTensor tensor = distributed(self, "to_local");
  const auto layout = to_optional_placements(grad_placements);
  return without_gil([&] { return tensor.to_local(layout); });
}

at::Tensor full_tensor(py::handle self, py::handle grad_placements) {
  const DTensor tensor = distributed(self, "full_tensor");
  const auto layout = to_optional_placements(grad_placements);
  return without_gil([&] { return tensor.full_tensor(layout); });
}

/// Returns the local tensor without a gradient.
at::Tensor local_tensor(py::handle self) {
  const DTensor tensor = distributed(self, "_local_tensor");
  const at::NoGradGuard no_grad;
  return without_gil([&] { return tensor.to_local(); });
}

/// Refuses a new Partial, as Python does: a Partial is the result of an
/// operator.
void check_reachable(PlacementsRef from, PlacementsRef to) {
  for (size_t i = 0; i < std::min(from.size(), to.size()); ++i) {
    TORCH_CHECK(
        !to[i].is_partial() || to[i] == from[i],
        "[redistribute] Can not redistribute from ",
        from[i],
        " to ",
        to[i],
        ", redistributing to Partial is for internal use only!");
  }
}

at::Tensor redistribute(
    py::handle self,
    py::handle device_mesh,
    py::handle placements,
    bool async_op,
    OptionalDtype forward_dtype,
    OptionalDtype backward_dtype) {
  const DTensor tensor = distributed(self, "redistribute");
  TORCH_CHECK(
      !placements.is_none(),
      "[redistribute] placements is needed for redistribute!");
  const auto layout = to_placements(placements);
  check_reachable(tensor.placements(), layout);
  const RedistributeOptions options = {
      .forward_dtype = forward_dtype,
      .backward_dtype = backward_dtype,
      .async_op = async_op};
  if (device_mesh.is_none()) {
    return without_gil([&] { return tensor.redistribute(layout, options); });
  }
  const DeviceMesh& mesh = to_mesh(device_mesh);
  return without_gil(
      [&] { return tensor.redistribute(mesh, layout, options); });
}

at::Tensor distribute(
    const at::Tensor& tensor,
    py::handle device_mesh,
    py::handle placements,
    std::optional<int64_t> src_data_rank) {
  const DeviceMesh& mesh = to_mesh(device_mesh);
  const auto layout = to_placements(placements);
  return without_gil(
      [&] { return distribute_tensor(tensor, mesh, layout, src_data_rank); });
}

void bind_attributes(py::module_& module) {
  module.def("placements", [](py::handle self) {
    return to_python(distributed(self, "placements").placements());
  });
  module.def("device_mesh", [](py::handle self) {
    return to_python(distributed(self, "device_mesh").device_mesh());
  });
  module.def("spec", [](py::handle self) {
    return to_python(distributed(self, "_spec").spec());
  });
  module.def("layout", [](py::handle self) {
    return to_string(*distributed(self, "layout").spec());
  });
  module.def("live_specs", &live_specs);
}

} // namespace

void bind_tensors(py::module_& module) {
  const auto none = py::none();
  module.attr("is_dtensor") = py::reinterpret_steal<py::object>(
      PyCFunction_New(&is_dtensor_method, nullptr));
  module.def("from_local", &from_local);
  module.def("from_spec", &from_spec);
  module.def(
      "to_local",
      &to_local,
      py::arg("self"),
      py::kw_only(),
      py::arg("grad_placements") = none);
  module.def(
      "full_tensor",
      &full_tensor,
      py::arg("self"),
      py::kw_only(),
      py::arg("grad_placements") = none);
  module.def("local_tensor", &local_tensor);
  module.def(
      "redistribute",
      &redistribute,
      py::arg("self"),
      py::arg("device_mesh") = none,
      py::arg("placements") = none,
      py::kw_only(),
      py::arg("async_op") = false,
      py::arg("forward_dtype") = none,
      py::arg("backward_dtype") = none);
  module.def("distribute_tensor", &distribute);
  bind_attributes(module);
}

} // namespace dtensor::python

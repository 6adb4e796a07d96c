// SPDX-License-Identifier: BSD-3-Clause
// Functions that make DTensors. A distributed tensor is a torch.Tensor in
// Python, too.
#include "parts.h"

#include "arguments.h"
#include "calls.h"
#include "convert.h"
#include "without_gil.h"

#include <dtensor/layout/shard_math.h>
#include <dtensor/layout/text.h>
#include <dtensor/tensor/dtensor.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

namespace dtensor::python {
namespace {

using OptionalDtype = std::optional<at::ScalarType>;

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

at::Tensor from_spec(
    py::handle local_tensor,
    py::handle device_mesh,
    py::handle placements,
    const std::vector<int64_t>& shape,
    const std::vector<int64_t>& stride,
    OptionalDtype dtype,
    py::handle requires_grad) {
  const auto local = cast_argument<at::Tensor>(
      "DTensor", "local_tensor", kTensor, local_tensor);
  const bool records =
      cast_argument<bool>("DTensor", "requires_grad", kBool, requires_grad);
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
    return DTensor(local, spec, records);
  });
}

at::Tensor distribute(
    py::handle tensor,
    py::handle device_mesh,
    py::handle placements,
    py::handle src_data_rank) {
  constexpr const char* name = "distribute_tensor";
  constexpr Expected kRank{"an integer or None", "Pass 0, or None."};
  const auto full = cast_argument<at::Tensor>(name, "tensor", kTensor, tensor);
  const auto source = cast_argument<std::optional<int64_t>>(
      name, "src_data_rank", kRank, src_data_rank);
  const DeviceMesh& mesh = to_mesh(device_mesh);
  const auto layout = to_placements(placements);
  return without_gil(
      [&] { return distribute_tensor(full, mesh, layout, source); });
}

} // namespace

void bind_tensors(py::module_& module) {
  add_function(module, is_dtensor_method);
  module.def("from_spec", &from_spec);
  module.def("distribute_tensor", &distribute);
  module.def("layout", [](const at::Tensor& self) {
    return to_string(*DTensor(self).spec());
  });
  module.def(
      "chunk", [](int64_t size, int64_t parts, int64_t index, int64_t unit) {
        const Interval part = chunk(size, parts, index, unit);
        return std::pair(part.begin, part.end);
      });
  module.def("live_specs", &live_specs);
}

} // namespace dtensor::python

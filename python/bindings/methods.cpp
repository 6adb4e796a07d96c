// SPDX-License-Identifier: BSD-3-Clause
// Methods and attributes of distributed tensors, as attributes of torch.Tensor.
// For plain tensors, the getters raise AttributeError.
#include "parts.h"

#include "arguments.h"
#include "calls.h"
#include "convert.h"
#include "method_descriptors.h"
#include "without_gil.h"

#include <dtensor/error.h>
#include <dtensor/tensor/dtensor.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

namespace dtensor::python {
namespace {

using OptionalSizes = std::optional<std::vector<int64_t>>;
using OptionalDtype = std::optional<at::ScalarType>;

const at::Tensor* as_dtensor(PyObject* self) {
  if (!THPVariable_Check(self)) {
    return nullptr;
  }
  const at::Tensor& tensor = THPVariable_Unpack(self);
  return is_dtensor(tensor) ? &tensor : nullptr;
}

const at::Tensor& distributed(PyObject* self, const char* name) {
  const at::Tensor* const tensor = as_dtensor(self);
  if (tensor == nullptr) {
    throw py::attribute_error(
        std::string("'Tensor' object has no attribute '") + name + "'");
  }
  return *tensor;
}

bool to_bool(const char* function, const char* name, py::handle value) {
  return !value.is_none() && cast_argument<bool>(function, name, kBool, value);
}

OptionalDtype to_dtype(const char* name, py::handle value) {
  return cast_argument<OptionalDtype>("redistribute", name, kDtype, value);
}

OptionalSizes to_sizes(const char* name, py::handle value) {
  return cast_argument<OptionalSizes>("from_local", name, kIntegers, value);
}

// --- methods -----------------------------------------------------------------

/// Returns the argument of to_local() and full_tensor().
std::optional<Placements> grad_placements(
    const Signature<1>& signature,
    PyObject* const* given,
    Py_ssize_t count,
    PyObject* keywords) {
  if (count == 0 && keywords == nullptr) {
    return std::nullopt;
  }
  const Arguments arguments(signature, given, count, keywords);
  return to_optional_placements(arguments[0]);
}

/// Returns the local tensor. Only to wait for an asynchronous redistribution,
/// releases the GIL and turns LibTorch's warnings into Python's. Otherwise no
/// operator runs, so no wait and no warning is possible.
at::Tensor local_of(
    const DTensor& tensor,
    const std::optional<Placements>& grad_placements = std::nullopt) {
  const auto get = [&] { return tensor.to_local(grad_placements); };
  return is_pending(tensor) ? without_gil(get) : get();
}

PyObject* to_local(
    PyObject* self,
    PyObject* const* given,
    Py_ssize_t count,
    PyObject* keywords) {
  static const Signature<1> signature("to_local", 0, {"grad_placements"});
  return guarded([&] {
    const DTensor tensor(distributed(self, signature.function));
    const auto layout = grad_placements(signature, given, count, keywords);
    return THPVariable_Wrap(local_of(tensor, layout));
  });
}

PyObject* full_tensor(
    PyObject* self,
    PyObject* const* given,
    Py_ssize_t count,
    PyObject* keywords) {
  static const Signature<1> signature("full_tensor", 0, {"grad_placements"});
  return guarded([&] {
    const DTensor tensor(distributed(self, signature.function));
    const auto layout = grad_placements(signature, given, count, keywords);
    return THPVariable_Wrap(
        without_gil([&] { return tensor.full_tensor(layout); }));
  });
}

/// Refuses a new Partial, as Python does, because a Partial is the result of an
/// operator.
void check_reachable(PlacementsRef from, PlacementsRef to) {
  for (size_t i = 0; i < std::min(from.size(), to.size()); ++i) {
    TORCH_CHECK(
        !to[i].is_partial() || to[i] == from[i],
        "[redistribute] Can not redistribute from ",
        from[i],
        " to ",
        to[i],
        ", redistributing to Partial is for internal use only! Redistribute to "
        "Shard or Replicate.");
  }
}

at::Tensor redistributed(const DTensor& tensor, const Arguments<5>& arguments) {
  TORCH_CHECK(
      !arguments[1].is_none(),
      "[redistribute] placements is needed for redistribute! Pass one for each "
      "mesh dimension.");
  const auto layout = to_placements(arguments[1]);
  check_reachable(tensor.placements(), layout);
  RedistributeOptions options;
  options.async_op = to_bool("redistribute", "async_op", arguments[2]);
  if (!arguments[3].is_none()) {
    options.forward_dtype = to_dtype("forward_dtype", arguments[3]);
  }
  if (!arguments[4].is_none()) {
    options.backward_dtype = to_dtype("backward_dtype", arguments[4]);
  }
  if (arguments[0].is_none()) {
    return without_gil([&] { return tensor.redistribute(layout, options); });
  }
  const DeviceMesh& mesh = to_mesh(arguments[0]);
  return without_gil(
      [&] { return tensor.redistribute(mesh, layout, options); });
}

PyObject* redistribute(
    PyObject* self,
    PyObject* const* given,
    Py_ssize_t count,
    PyObject* keywords) {
  static const Signature<5> signature(
      "redistribute",
      2,
      {"device_mesh",
       "placements",
       "async_op",
       "forward_dtype",
       "backward_dtype"});
  return guarded([&] {
    const DTensor tensor(distributed(self, signature.function));
    const Arguments arguments(signature, given, count, keywords);
    return THPVariable_Wrap(redistributed(tensor, arguments));
  });
}

// --- from_local --------------------------------------------------------------

const at::Tensor& plain_tensor(py::handle local) {
  if (!THPVariable_Check(local.ptr())) {
    throw py::type_error(
        "[from_local] expected a torch.Tensor, got " +
        py::repr(py::type::handle_of(local)).cast<std::string>() +
        ". Pass the local tensor of this rank.");
  }
  const at::Tensor& tensor = THPVariable_Unpack(local.ptr());
  TORCH_CHECK(
      !is_dtensor(tensor),
      "[from_local] the local_tensor argument only accepts torch.Tensor but "
      "got DTensor value. Call redistribute() to change its layout.");
  return tensor;
}

FromLocalOptions from_local_options(const Arguments<7>& arguments) {
  FromLocalOptions options;
  options.run_check = to_bool("from_local", "run_check", arguments[3]);
  TORCH_CHECK(
      arguments[4].is_none() == arguments[5].is_none(),
      "[from_local] Found shape:",
      py::str(arguments[4]).cast<std::string>(),
      ", stride:",
      py::str(arguments[5]).cast<std::string>(),
      ". Please pass both shape and stride at the same time.");
  if (!arguments[4].is_none()) {
    options.shape = to_sizes("shape", arguments[4]);
    options.stride = to_sizes("stride", arguments[5]);
  }
  options.grad_placements = to_optional_placements(arguments[6]);
  return options;
}

constexpr const char* kFromLocalDoc =
    "from_local(local_tensor, device_mesh=None, placements=None, *, "
    "run_check=False, shape=None, stride=None, grad_placements=None)\n--\n\n"
    "Returns the DTensor of which ``local_tensor`` is this rank's shard.\n\n"
    "Args:\n"
    "    local_tensor: plain tensor of this rank.\n"
    "    device_mesh: mesh; by default that of ``with device_mesh:``.\n"
    "    placements: one for each mesh dimension; by default Replicate.\n"
    "    run_check: compares shapes, and broadcasts replicas.\n"
    "    shape, stride: of the full tensor, if the shards are uneven.\n"
    "    grad_placements: layout of the local tensor's gradient.";

PyObject* from_local(
    PyObject*,
    PyObject* const* given,
    Py_ssize_t count,
    PyObject* keywords) {
  static const Signature<7> signature(
      "from_local",
      3,
      {"local_tensor",
       "device_mesh",
       "placements",
       "run_check",
       "shape",
       "stride",
       "grad_placements"});
  return guarded([&] {
    const Arguments arguments(signature, given, count, keywords);
    const at::Tensor& local = plain_tensor(arguments[0]);
    const DeviceMesh& mesh = to_mesh(arguments[1]);
    const auto layout = to_placements(arguments[2]);
    const auto options = from_local_options(arguments);
    const auto make = [&] {
      return DTensor::from_local(local, mesh, layout, options);
    };
    // Only the check communicates.
    return THPVariable_Wrap(
        options.run_check ? without_gil(make) : with_gil(make));
  });
}

// --- attributes --------------------------------------------------------------

PyObject* get_placements(PyObject* self, void*) {
  return guarded([&] {
    const DTensor tensor(distributed(self, "placements"));
    return to_python(tensor.placements()).release().ptr();
  });
}

PyObject* get_device_mesh(PyObject* self, void*) {
  return guarded([&] {
    const DTensor tensor(distributed(self, "device_mesh"));
    return to_python(tensor.device_mesh()).release().ptr();
  });
}

PyObject* get_spec(PyObject* self, void*) {
  return guarded([&] {
    const DTensor tensor(distributed(self, "_spec"));
    return to_python(tensor.spec()).release().ptr();
  });
}

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

/// Returns the object that the last access returned, if the program still holds
/// this object and it still is the local tensor.
PyObject* get_local_tensor(PyObject* self, void*) {
  static auto* const name = new py::object(interned("_dt_local"));
  return guarded([&] {
    const at::Tensor local =
        detached_local(DTensor(distributed(self, "_local_tensor")));
    const auto attributes =
        py::reinterpret_steal<py::dict>(PyObject_GenericGetDict(self, nullptr));
    PyObject* const reference = PyDict_GetItem(attributes.ptr(), name->ptr());
    if (reference != nullptr) {
      const py::object last = py::reinterpret_borrow<py::object>(reference)();
      if (THPVariable_Check(last.ptr()) &&
          are_same_view(THPVariable_Unpack(last.ptr()), local)) {
        return last.inc_ref().ptr();
      }
    }
    py::object made = py::cast(local);
    attributes[*name] = py::weakref(made);
    return made.release().ptr();
  });
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
int set_local_tensor(PyObject* self, PyObject* value, void*) {
  PyObject* const done = guarded([&] {
    const at::NoGradGuard no_grad;
    const DTensor tensor(distributed(self, "_local_tensor"));
    const at::Tensor local = local_of(tensor);
    const at::Tensor& given = new_local(value, local);
    if (!are_same_view(given.detach(), local.detach())) {
      const at::Tensor other = DTensor(given.detach(), tensor.spec(), false);
      THPVariable_Unpack(self).set_data(other);
    }
    return Py_NewRef(Py_None);
  });
  Py_XDECREF(done);
  return done == nullptr ? -1 : 0;
}

constexpr const char* kRedistributeDoc =
    "redistribute(device_mesh=None, placements=None, *, async_op=False, "
    "forward_dtype=None, backward_dtype=None)\n--\n\n"
    "Returns the same tensor in another layout.";
constexpr const char* kToLocalDoc =
    "to_local(*, grad_placements=None)\n--\n\n"
    "Returns this rank's shard, which shares the DTensor's memory.";
constexpr const char* kFullTensorDoc =
    "full_tensor(*, grad_placements=None)\n--\n\n"
    "Returns the full tensor on every rank.";

enum Method { kToLocal, kFullTensor, kRedistribute, kFromLocal };
PyMethodDef methods[] = {
    fast_method("to_local", &to_local, kToLocalDoc),
    fast_method("full_tensor", &full_tensor, kFullTensorDoc),
    fast_method("redistribute", &redistribute, kRedistributeDoc),
    fast_method("from_local", &from_local, kFromLocalDoc)};

PyGetSetDef attributes[] = {
    {"placements", &get_placements, nullptr, "Layout of a DTensor.", nullptr},
    {"device_mesh", &get_device_mesh, nullptr, "Mesh of a DTensor.", nullptr},
    {"_spec", &get_spec, nullptr, nullptr, nullptr},
    {"_local_tensor", &get_local_tensor, &set_local_tensor, nullptr, nullptr}};

/// Installs the attributes in the class torch.Tensor.
void add_attributes(py::handle tensor_class) {
  auto* const tensor_type = reinterpret_cast<PyTypeObject*>(tensor_class.ptr());
  for (PyGetSetDef& attribute : attributes) {
    const auto descriptor = py::reinterpret_steal<py::object>(
        PyDescr_NewGetSet(tensor_type, &attribute));
    py::setattr(tensor_class, attribute.name, descriptor);
  }
  const auto check = [](PyObject* self, const char* name) {
    distributed(self, name);
  };
  for (const Method method : {kToLocal, kFullTensor, kRedistribute}) {
    py::setattr(
        tensor_class,
        methods[method].ml_name,
        method_descriptor(methods[method], check));
  }
}

} // namespace

void bind_methods(py::module_& module) {
  module.attr("from_local") = py::reinterpret_steal<py::object>(
      PyCFunction_New(&methods[kFromLocal], nullptr));
  module.def("add_attributes", &add_attributes);
}

} // namespace dtensor::python

// SPDX-License-Identifier: BSD-3-Clause
// Methods of distributed tensors, as attributes of torch.Tensor. Plain tensors
// do not have them and raise AttributeError.
#include "parts.h"

#include "arguments.h"
#include "calls.h"
#include "convert.h"
#include "distributed.h"
#include "without_gil.h"

#include <structmember.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <cstddef>

namespace dtensor::python {
namespace {

using OptionalSizes = std::optional<std::vector<int64_t>>;
using OptionalDtype = std::optional<at::ScalarType>;

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

/// Returns true for an nn.Parameter, or an object of a class derived from it.
bool is_parameter(PyObject* self) {
  auto* const parameter = reinterpret_cast<PyTypeObject*>(ParameterClass);
  return Py_TYPE(self) != reinterpret_cast<PyTypeObject*>(THPVariableClass) &&
      PyType_IsSubtype(Py_TYPE(self), parameter) != 0;
}

/// Makes isinstance(local, nn.Parameter) true for the local tensor of a
/// parameter, as PyTorch does.
void mark_parameter(py::handle local) {
  static auto* const name = new py::object(interned("_is_param"));
  py::setattr(local, *name, py::bool_(true));
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
    auto local = py::reinterpret_steal<py::object>(
        THPVariable_Wrap(local_of(tensor, layout)));
    if (local && is_parameter(self)) {
      mark_parameter(local);
    }
    return local.release().ptr();
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

/// Returns a new tensor in place of the given one, as PyTorch does for a layout
/// that does not change.
at::Tensor distinct_from(const at::Tensor& given, at::Tensor result) {
  return result.is_same(given) ? given.detach() : result;
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
  options.forward_dtype = to_dtype("forward_dtype", arguments[3]);
  options.backward_dtype = to_dtype("backward_dtype", arguments[4]);
  if (arguments[0].is_none()) {
    return without_gil([&] {
      return distinct_from(tensor, tensor.redistribute(layout, options));
    });
  }
  const DeviceMesh& mesh = to_mesh(arguments[0]);
  return without_gil([&] {
    return distinct_from(tensor, tensor.redistribute(mesh, layout, options));
  });
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
  options.shape = to_sizes("shape", arguments[4]);
  options.stride = to_sizes("stride", arguments[5]);
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

// --- descriptors -------------------------------------------------------------

// A call x.f() finds the descriptor without making a bound method first, as for
// methods of the class.

struct Descriptor {
  PyObject_HEAD vectorcallfunc call;
  PyMethodDef* method;
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
    PyMethodDef* const method = as_descriptor(object).method;
    distributed(self, method->ml_name); // throws for other objects
    return PyCFunction_New(method, self);
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

/// Returns a descriptor for a class attribute. `method`, a FastFunction that
/// checks its first argument itself, lives as long as the process.
py::object method_descriptor(PyMethodDef& method) {
  static PyTypeObject* const type = make_type(); // lives as long as the process
  PyObject* const object = type->tp_alloc(type, 0);
  if (object == nullptr) {
    throw py::error_already_set();
  }
  auto* const descriptor = reinterpret_cast<Descriptor*>(object);
  descriptor->call = &call_descriptor;
  descriptor->method = &method;
  return py::reinterpret_steal<py::object>(object);
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

/// Installs the methods in the class torch.Tensor.
void add_methods(py::handle tensor_class) {
  for (const Method method : {kToLocal, kFullTensor, kRedistribute}) {
    py::setattr(
        tensor_class,
        methods[method].ml_name,
        method_descriptor(methods[method]));
  }
}

} // namespace

void bind_methods(py::module_& module) {
  add_function(module, methods[kFromLocal]);
  module.def("add_methods", &add_methods);
}

} // namespace dtensor::python

// SPDX-License-Identifier: BSD-3-Clause
// Conversions of inputs and outputs by ColwiseParallel and RowwiseParallel.
// PyTorch's hooks call them in place of the styles' own functions.
#include "parts.h"

#include "calls.h"
#include "convert.h"
#include "distributed.h"
#include "without_gil.h"

#include <dtensor/error.h>
#include <dtensor/tensor/dtensor.h>
#include <torch/csrc/autograd/python_variable.h>

#include <unordered_map>

namespace dtensor::python {
namespace {

/// Returns the engine's placements of a style's tuple, which lives as long as
/// its model. Converts each tuple once.
const Placements& layout_of_style(py::handle tuple) {
  struct Kept {
    py::object tuple; // so that no other object gets its address
    Placements placements;
  };
  static auto* const layouts = new std::unordered_map<PyObject*, Kept>;
  constexpr size_t kMaxLayouts = 1024;
  const auto found = layouts->find(tuple.ptr());
  if (found != layouts->end()) {
    return found->second.placements;
  }
  if (layouts->size() >= kMaxLayouts) {
    const auto dropped = std::exchange(*layouts, {});
  }
  Kept kept{py::reinterpret_borrow<py::object>(tuple), to_placements(tuple)};
  return layouts->emplace(tuple.ptr(), std::move(kept))
      .first->second.placements;
}

void check_count(const char* function, Py_ssize_t count, PyObject* keywords) {
  if (count != 5 || keywords != nullptr) {
    throw py::type_error(
        std::string(function) + "() takes 5 positional arguments.");
  }
}

const at::Tensor& tensor_in(py::handle value, const char* what) {
  if (!THPVariable_Check(value.ptr())) {
    throw py::type_error(
        std::string("[parallelize_module] expected ") + what +
        " that is a torch.Tensor, got " +
        py::repr(py::type::handle_of(value)).cast<std::string>() +
        ". Style modules whose first input and output are tensors.");
  }
  return THPVariable_Unpack(value.ptr());
}

void check_not_transformed(const at::Tensor& tensor, const char* what) {
  DTENSOR_CHECK_NOT_IMPLEMENTED(
      !is_transformed(tensor),
      "[parallelize_module] transforms of torch.func, such as grad and vmap, "
      "are not supported for styled modules: {} belongs to a transform. Use "
      "torch.autograd.grad, or call the module outside of the transform.",
      what);
}

/// Redistributes. With `async_op`, does not wait for the collective.
at::Tensor redistributed(
    const at::Tensor& tensor,
    const Placements& layout,
    bool async_op) {
  RedistributeOptions options;
  options.async_op = async_op;
  return DTensor(tensor).redistribute(layout, options);
}

/// prepare_input(input_layouts, desired_input_layouts, module, inputs, mesh)
PyObject* prepare_input(
    PyObject*,
    PyObject* const* given,
    Py_ssize_t count,
    PyObject* keywords) {
  return guarded([&] {
    check_count("prepare_input", count, keywords);
    const auto inputs = py::reinterpret_borrow<py::sequence>(given[3]);
    const py::object first = inputs[0];
    const at::Tensor& input = tensor_in(first, "an input");
    const bool is_plain = !is_dtensor(input);
    if (is_plain) {
      check_not_transformed(input, "an input");
    }
    const Placements layout = layout_of_style(given[0]);
    const Placements desired = layout_of_style(given[1]);
    if (!is_plain && layout == desired) {
      return py::object(first).release().ptr();
    }
    const DeviceMesh* const mesh = is_plain ? &to_mesh(given[4]) : nullptr;
    return THPVariable_Wrap(without_gil([&] {
      const at::Tensor placed =
          is_plain ? DTensor::from_local(input, *mesh, layout) : input;
      return layout == desired
          ? placed
          : redistributed(placed, desired, /*async_op=*/true);
    }));
  });
}

bool has_layout(const DTensor& tensor, const Placements& layout) {
  const auto placements = tensor.placements();
  const auto are_equal = [&](const Placement& has, const Placement& given) {
    const bool from_end = given.is_sharded() && given.dim() < 0;
    return has ==
        (from_end ? given.with_dim(given.dim() + tensor.dim()) : given);
  };
  return std::equal(
      placements.begin(),
      placements.end(),
      layout.begin(),
      layout.end(),
      are_equal);
}

/// prepare_output(output_layouts, use_local_output, module, outputs, mesh)
PyObject* prepare_output(
    PyObject*,
    PyObject* const* given,
    Py_ssize_t count,
    PyObject* keywords) {
  return guarded([&] {
    check_count("prepare_output", count, keywords);
    const at::Tensor& output = tensor_in(given[3], "an output");
    check_not_transformed(output, "an output");
    const Placements layout = layout_of_style(given[0]);
    const bool as_local = py::handle(given[1]).cast<bool>();
    const bool is_placed = has_layout(DTensor(output), layout);
    if (is_placed && !as_local) {
      return py::reinterpret_borrow<py::object>(given[3]).release().ptr();
    }
    return THPVariable_Wrap(without_gil([&] {
      // to_local() would wait at once.
      const at::Tensor placed = is_placed
          ? output
          : redistributed(output, layout, /*async_op=*/!as_local);
      return as_local ? DTensor(placed).to_local() : placed;
    }));
  });
}

// distribute_module() counts the parameters of these signatures.
PyMethodDef functions[] = {
    fast_method(
        "prepare_input",
        &prepare_input,
        "prepare_input(input_layouts, desired_input_layouts, mod, inputs, "
        "device_mesh, /)\n--\n\n"
        "Returns the input of a module in the desired layout."),
    fast_method(
        "prepare_output",
        &prepare_output,
        "prepare_output(output_layouts, use_local_output, mod, outputs, "
        "device_mesh, /)\n--\n\n"
        "Returns the output of a module in the layout of the style.")};

} // namespace

void bind_styles(py::module_& module) {
  for (PyMethodDef& function : functions) {
    add_function(module, function);
  }
}

} // namespace dtensor::python

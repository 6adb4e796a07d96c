// SPDX-License-Identifier: BSD-3-Clause
// The components of the Python module dtensor._C, one per source file.
#pragma once

#include <pybind11/pybind11.h>

namespace dtensor::python {

/// set_python_names(): the Python objects that the conversions need.
void bind_names(pybind11::module_& module);
/// argument_error(): the text of an error for an argument of a wrong type.
void bind_arguments(pybind11::module_& module);
/// Worlds, meshes, the c10d backend over the engine's groups, and run_ranks(),
/// which runs a Python function on threads.
void bind_worlds(pybind11::module_& module);
/// Functions that make DTensors: distribute_tensor(), ...
void bind_tensors(pybind11::module_& module);
/// from_local(), and the methods of DTensors: to_local(), redistribute(), ...
void bind_methods(pybind11::module_& module);
/// Attributes of DTensors: placements, device_mesh, ...
void bind_attributes(pybind11::module_& module);
/// Indices that are lists, ranges or arrays.
void bind_indexing(pybind11::module_& module);
/// Factories: zeros(), rand(), ...
void bind_factories(pybind11::module_& module);
/// Scopes: loss_parallel(), observers of collectives, ...
void bind_scopes(pybind11::module_& module);
/// Conversions of inputs and outputs by tensor-parallel styles.
void bind_styles(pybind11::module_& module);
/// register_sharding().
void bind_sharding_rules(pybind11::module_& module);

} // namespace dtensor::python

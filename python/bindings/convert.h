// SPDX-License-Identifier: BSD-3-Clause
// Conversions between PyTorch's Python objects and this library's values. All
// functions need the GIL.
#pragma once

#include <dtensor/comm/world.h>
#include <dtensor/layout/mesh.h>
#include <dtensor/layout/placement.h>
#include <dtensor/layout/spec.h>
#include <pybind11/pybind11.h>

#include <optional>

namespace dtensor::python {

namespace py = pybind11;

/// PyTorch's classes and the package's Python functions that conversions need;
/// dtensor/worlds.py sets them once.
struct PythonNames {
  py::object shard;
  py::object replicate;
  py::object partial;
  py::object strided_shard;
  /// Placements with a unit, of dtensor/placements.py.
  py::object unit_shard;
  py::object unit_strided_shard;
  /// The only value of `replicate`.
  py::object replicate_value;
  /// plain_placement(object) -> Placement of one of the classes above, for an
  /// object of a subclass. Raises TypeError for other objects.
  py::object plain_placement;
  /// engine_mesh(DeviceMesh) -> Mesh
  py::object engine_mesh;
  /// current_mesh(None) -> DeviceMesh of the innermost `with device_mesh:`
  py::object current_mesh;
  /// new_group(ranks) -> ProcessGroup
  py::object new_group;
  /// python_group(ProcessGroup) -> PythonGroup, or None for one of C++
  py::object python_group;
  /// make_spec(mesh, placements, shape, stride, dtype) -> DTensorSpec
  py::object make_spec;
};
PythonNames& python_names();

/// Returns an interned string, for names of attributes that are read often.
py::object interned(const char* text);

/// Returns the engine's placement. Throws TypeError for a placement that has no
/// counterpart.
Placement to_placement(py::handle placement);
/// Returns the engine's placements; None becomes no placements.
Placements to_placements(py::handle placements);
std::optional<Placements> to_optional_placements(py::handle placements);
/// Returns a tuple of PyTorch's placements; one tuple for each layout.
py::object to_python(PlacementsRef placements);

/// A mesh of the engine, kept by PyTorch's DeviceMesh in `_dt_mesh`.
struct Mesh {
  DeviceMesh mesh;
  /// World of the rank that made the mesh; `mesh` keeps it alive.
  const World* world = nullptr;
};
/// Returns the engine's mesh of PyTorch's DeviceMesh, for this rank; None is
/// the current mesh.
const DeviceMesh& to_mesh(py::handle device_mesh);
/// Returns PyTorch's DeviceMesh of a mesh that to_mesh() returned. Of equal
/// DeviceMeshes, which share a mesh, this is the latest argument of to_mesh().
py::object to_python(const DeviceMesh& mesh);
/// Returns PyTorch's DTensorSpec of a spec; the same object for equal specs,
/// while to_python() returns the same DeviceMesh.
py::object to_python(const SpecPtr& spec);
/// Drops the Python objects of this rank's meshes and specs, once its world
/// ends.
void forget_world(const World& world);

} // namespace dtensor::python

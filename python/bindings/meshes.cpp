// SPDX-License-Identifier: BSD-3-Clause
// Conversions of meshes and specs. PyTorch's meshes and the engine's are kept
// in pairs until their world ends.
#include "convert.h"

#include <torch/csrc/utils/pybind.h>

#include <unordered_map>
#include <utility>
#include <vector>

namespace dtensor::python {
namespace {

struct PythonMesh {
  py::object object;
  const World* world;
};
/// Meshes by identity(). The Python object keeps the engine's mesh alive, so no
/// other mesh gets its identity.
std::unordered_map<const void*, PythonMesh>& python_meshes() {
  static auto* const meshes = new std::unordered_map<const void*, PythonMesh>;
  return *meshes;
}

struct PythonSpec {
  py::object object;
  const World* world;
  py::object device_mesh;
};
/// DTensorSpecs by Spec::id(), which is never reused for a later spec.
std::unordered_map<uint64_t, PythonSpec>& python_specs() {
  static auto* const specs = new std::unordered_map<uint64_t, PythonSpec>;
  return *specs;
}
/// Tables of specs are emptied beyond this size, so that a program with ever
/// new shapes does not grow.
constexpr size_t kMaxSpecs = 4096;

/// Makes `device_mesh` the Python object of a mesh, in place of another
/// DeviceMesh of the same ranks. The two may have different root meshes, which
/// fully_shard compares.
void keep_latest(const DeviceMesh& mesh, py::handle device_mesh) {
  PythonMesh& kept = python_meshes()[mesh.identity()];
  if (!kept.object.is(device_mesh)) {
    const auto replaced = std::exchange(
        kept,
        {py::reinterpret_borrow<py::object>(device_mesh), &current_world()});
  }
}

const Mesh* kept_mesh(py::handle device_mesh) {
  static auto* const name = new py::object(interned("_dt_mesh"));
  PyObject* const found = PyObject_GetAttr(device_mesh.ptr(), name->ptr());
  if (found == nullptr) {
    PyErr_Clear();
    return nullptr;
  }
  // The DeviceMesh still refers to the mesh.
  return py::reinterpret_steal<py::object>(found).cast<const Mesh*>();
}

} // namespace

const DeviceMesh& to_mesh(py::handle device_mesh) {
  if (device_mesh.is_none()) {
    return to_mesh(python_names().current_mesh(device_mesh));
  }
  const Mesh* const kept = kept_mesh(device_mesh);
  if (kept != nullptr && kept->world == &current_world()) {
    keep_latest(kept->mesh, device_mesh);
    return kept->mesh;
  }
  const py::object made = python_names().engine_mesh(device_mesh);
  // engine_mesh() keeps the result for the rank, so the result outlives `made`.
  const auto& mesh = made.cast<const Mesh&>().mesh;
  keep_latest(mesh, device_mesh);
  return mesh;
}

py::object to_python(const DeviceMesh& mesh) {
  const auto found = python_meshes().find(mesh.identity());
  TORCH_CHECK(
      found != python_meshes().end(),
      "[device_mesh] the mesh was not made from a Python DeviceMesh, or its "
      "process group was destroyed. Make tensors after init_process_group().");
  return found->second.object;
}

py::object to_python(const SpecPtr& spec) {
  auto& specs = python_specs();
  const py::object device_mesh = to_python(spec->mesh());
  const auto found = specs.find(spec->id());
  if (found != specs.end() && found->second.device_mesh.is(device_mesh)) {
    return found->second.object;
  }
  if (specs.size() >= kMaxSpecs) {
    const auto dropped = std::exchange(specs, {});
  }
  py::object made = python_names().make_spec(
      device_mesh,
      to_python(spec->placements()),
      py::cast(
          std::vector<int64_t>(spec->sizes().begin(), spec->sizes().end())),
      py::cast(
          std::vector<int64_t>(spec->strides().begin(), spec->strides().end())),
      py::cast(spec->dtype()));
  const auto replaced = std::exchange(
      specs[spec->id()], PythonSpec{made, &current_world(), device_mesh});
  return made;
}

void forget_world(const World& world) {
  // Objects are destroyed once the tables are consistent, because a destructor
  // may let another thread run.
  std::vector<py::object> forgotten;
  const auto take = [&](auto& table) {
    for (auto entry = table.begin(); entry != table.end();) {
      if (entry->second.world == &world) {
        forgotten.push_back(std::move(entry->second.object));
        entry = table.erase(entry);
      } else {
        ++entry;
      }
    }
  };
  take(python_specs());
  take(python_meshes());
}

} // namespace dtensor::python
